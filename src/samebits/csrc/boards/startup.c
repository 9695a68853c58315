/* Vector table and reset of a Cortex-M processor: paint the stack, copy .data, clear .bss. */
#include "harness.h"

#define COPROCESSOR_ACCESS (*(volatile uint32_t *)UINT32_C(0xE000ED88))
#define APPLICATION_EXIT UINT32_C(0x20026)

extern uint32_t __data_start[];
extern uint32_t __data_end[];
extern const uint32_t __data_load[];
extern uint32_t __bss_start[];
extern uint32_t __bss_end[];

void samebits_exit(int code)
{
    uint32_t block[2];

    block[0] = APPLICATION_EXIT;
    block[1] = (uint32_t)code;
    for (;;) {
        (void)semihost(SYS_EXIT_EXTENDED, block);
    }
}

void samebits_fault(const uint32_t *stack);

/* `stack`: where the stack pointer was. */
__attribute__((used)) void samebits_fault(const uint32_t *stack)
{
    const int whole = stack >= __stack_start && __stack_start[0] == STACK_PAINT;

    samebits_exit(whole ? EXIT_FAULT : EXIT_STACK_OVERFLOW);
}

/* After an overflow the stack pointer is outside the RAM: nothing can be pushed until it moves. */
__attribute__((naked)) static void fault(void)
{
    __asm__ volatile("mov r0, sp\n\t"
                     "ldr r1, =__stack_end\n\t"
                     "mov sp, r1\n\t"
                     "ldr r1, =samebits_fault\n\t"
                     "bx r1\n\t"
                     ".ltorg");
}

/* Not inlined: on cores with vector registers, the compiler may use them here. */
__attribute__((noinline)) static void start(void)
{
    const uint32_t *from = __data_load;
    uint32_t *to; /* compared by address: an end is an object of its own */

    for (to = __data_start; (uintptr_t)to < (uintptr_t)__data_end; ++to) {
        *to = *from++;
    }
    for (to = __bss_start; (uintptr_t)to < (uintptr_t)__bss_end; ++to) {
        *to = 0;
    }
    samebits_exit(samebits_main());
}

void samebits_reset(void)
{
    uint32_t *word = __stack_start;
    uint32_t *top;

    __asm__ volatile("mov %0, sp" : "=r"(top));
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    COPROCESSOR_ACCESS |= UINT32_C(0xF) << 20; /* cp10 and cp11: floating point and MVE */
    __asm__ volatile("dsb\n\tisb" : : : "memory");
#endif
    while (word < top) {
        *(volatile uint32_t *)word = STACK_PAINT;
        ++word;
    }
    start();
}

typedef void (*handler)(void);

/* Initial stack pointer, reset, then every system exception; no interrupt is ever enabled. */
__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    handler handlers[15];
} vectors = {__stack_end,
             {samebits_reset, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault,
              fault, fault, fault, fault}};
