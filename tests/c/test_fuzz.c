/* Runs the fuzz target on inputs of its own, so that each compiler and each
 * sanitizer sees it; `make fuzz` looks for better ones. */
#include "test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PROGRAMS = 400, LENGTH = 600 };

static void
random_programs(void)
{
    uint8_t program[LENGTH];
    uint32_t random = 2;
    for (int i = 0; i < PROGRAMS; i++) {
        size_t size = test_random(&random) % LENGTH;
        for (size_t k = 0; k < size; k++) {
            program[k] = (uint8_t)test_random(&random);
        }
        CHECK(LLVMFuzzerTestOneInput(program, size) == 0);
    }
}

int
main(void)
{
    RUN(random_programs);
    return test_report();
}
