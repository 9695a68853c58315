/* Says whether this chip computes the known answer of @model@. */
#include <stdio.h>

#include "@model@.h"

void app_main(void) {
    @MODEL@_INSTANCE(net);@buffers@
    printf("@model@: self-test %s\n", @model@_selftest(@arguments@) ? "FAILED" : "passed");
}
