/* One timer per board, read after an inference. Under the emulator's instruction-driven clock its
   ticks are instructions; on hardware they would be time.

   timer_reset: start at 0. timer_read: the ticks since then; TIMER_OVERFLOW if there were more than
   the timer can tell (about 2**32, at least 3 * 2**30). */
#ifndef SAMEBITS_TIMER_H
#define SAMEBITS_TIMER_H

#include <stdint.h>

#define TIMER_OVERFLOW UINT32_C(0xFFFFFFFF)
#define REGISTER(address) (*(volatile uint32_t *)UINT32_C(address))

#if defined(SAMEBITS_TIMER_NRF51)
/* nRF51 Series Reference Manual, chapter 18 (TIMER), TIMER0: 32 bits, 16 MHz. */
static inline void timer_reset(void)
{
    REGISTER(0x40008004) = 1; /* TASKS_STOP */
    REGISTER(0x40008508) = 3; /* BITMODE: 32 bits */
    REGISTER(0x40008510) = 0; /* PRESCALER */
    REGISTER(0x40008544) = UINT32_C(0xC0000000); /* CC[1]: the most, with room before the wrap */
    REGISTER(0x4000800C) = 1; /* TASKS_CLEAR */
    REGISTER(0x40008144) = 0; /* EVENTS_COMPARE[1] */
    REGISTER(0x40008000) = 1; /* TASKS_START */
}

static inline uint32_t timer_read(void)
{
    REGISTER(0x40008040) = 1; /* TASKS_CAPTURE[0] */
    return REGISTER(0x40008144) ? TIMER_OVERFLOW : REGISTER(0x40008540); /* CC[0] */
}

#elif defined(SAMEBITS_TIMER_CMSDK) || defined(SAMEBITS_TIMER_IOTKIT)
/* Cortex-M System Design Kit Technical Reference Manual, section 4.2 (APB timer), timer 0: counts
   down, 25 MHz; in the IoT Kit, at its secure address, 20 MHz. Its interrupt only sets the status
   bit here. */
#ifdef SAMEBITS_TIMER_IOTKIT
#define TIMER(offset) REGISTER(0x5000000##offset)
#else
#define TIMER(offset) REGISTER(0x4000000##offset)
#endif

static inline void timer_reset(void)
{
    TIMER(0) = 0;                    /* CTRL: stop */
    TIMER(8) = UINT32_C(0xFFFFFFFF); /* RELOAD */
    TIMER(4) = UINT32_C(0xFFFFFFFF); /* VALUE */
    TIMER(C) = 1;                    /* INTCLEAR */
    TIMER(0) = 9;                    /* CTRL: enable, interrupt at 0 */
}

static inline uint32_t timer_read(void)
{
    const uint32_t value = TIMER(4);

    return TIMER(C) ? TIMER_OVERFLOW : ~value; /* INTSTATUS */
}

#elif defined(SAMEBITS_TIMER_SSE)
/* Arm SSE-300 Technical Reference Manual, system counter: its control and read frames. */
static inline void timer_reset(void)
{
    REGISTER(0x58100000) = 0; /* CNTCR: stop */
    REGISTER(0x58100008) = 0; /* CNTCV, low word */
    REGISTER(0x5810000C) = 0; /* CNTCV, high word */
    REGISTER(0x58100000) = 1; /* CNTCR: enable */
}

static inline uint32_t timer_read(void)
{
    const uint32_t low = REGISTER(0x58101000);

    return REGISTER(0x58101004) ? TIMER_OVERFLOW : low;
}
#endif

#endif
