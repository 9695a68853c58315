// Says every two seconds whether this board computes the known answer of @model@.
#include <@model@.h>

static int wrong;

void setup() {
  @MODEL@_INSTANCE(net);@buffers_ino@
  Serial.begin(115200);
  wrong = @model@_selftest(@arguments@);
}

void loop() {
  Serial.println(wrong ? "@model@: self-test FAILED" : "@model@: self-test passed");
  delay(2000);
}
