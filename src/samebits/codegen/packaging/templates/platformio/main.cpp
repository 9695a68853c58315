// Says whether this board, or this computer, computes the known answer of @model@.
#include <@model@.h>

static int wrong() {
  @MODEL@_INSTANCE(net);@buffers_ino@
  return @model@_selftest(@arguments@);
}

#ifdef ARDUINO
#include <Arduino.h>

void setup() { Serial.begin(115200); }

void loop() {
  Serial.println(wrong() ? "@model@: self-test FAILED" : "@model@: self-test passed");
  delay(2000);
}
#else
#include <stdio.h>

int main() {
  const int found = wrong();
  puts(found ? "@model@: self-test FAILED" : "@model@: self-test passed");
  return found != 0;
}
#endif
