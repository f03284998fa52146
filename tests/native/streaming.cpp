// Gives the streaming copy a symbol, so that its machine code can be read.

#include "cocoll/host/copy.h"

extern "C" __attribute__((visibility("default"))) void native_copy_streaming(char* destination,
                                                                             const char* source,
                                                                             int64_t bytes) {
  cocoll::host::copy_streaming(destination, source, bytes);
}
