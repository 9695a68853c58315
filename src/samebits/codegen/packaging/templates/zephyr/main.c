/* Says whether this board computes the known answer of @model@. */
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#include <@model@.h>

int main(void) {
    @MODEL@_INSTANCE(net);@buffers@
    printk("@model@: self-test %s\n", @model@_selftest(@arguments@) ? "FAILED" : "passed");
    return 0;
}
