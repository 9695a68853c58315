/* What start-up and the harness share: exit codes, semihosting, the stack's limits. */
#ifndef SAMEBITS_HARNESS_H
#define SAMEBITS_HARNESS_H

#include <stdint.h>

enum {
    EXIT_DONE = 0,
    EXIT_NO_FILE = 3,
    EXIT_SHORT_INPUT = 4,
    EXIT_NO_OUTPUT = 5,
    EXIT_STACK_OVERFLOW = 6,
    EXIT_FAULT = 7
};

/* The stack is filled with this word before anything runs. */
#define STACK_PAINT UINT32_C(0xA5C3A5C3)

extern uint32_t __stack_start[];
extern uint32_t __stack_end[];

void samebits_reset(void);
int samebits_main(void);
void samebits_exit(int code);

/* Arm semihosting (Semihosting for AArch32 and AArch64, release 2.0): operation in r0, its
   parameter in r1, the answer in r0. */
enum {
    SYS_OPEN = 0x01,
    SYS_CLOSE = 0x02,
    SYS_WRITE = 0x05,
    SYS_READ = 0x06,
    SYS_EXIT_EXTENDED = 0x20
};

static inline int32_t semihost(uint32_t operation, const void *parameter)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = parameter;

    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return (int32_t)r0;
}

#endif
