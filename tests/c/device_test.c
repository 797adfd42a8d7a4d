/* libtightwire_c_device from C99, on a machine that may have no GPU and no NCCL: then that is what it says. */
#include <tightwire/tightwire_device.h>

#include "check.h"

int main(void) {
  tightwire_communicator* host = NULL;
  tightwire_device_communicator* communicator = NULL;
  CHECK_FAILS(tightwire_device_communicator_adopt_nccl(&host, -1, &communicator), TIGHTWIRE_INVALID_ARGUMENT,
              "timeout_ms is negative");
  CHECK(tightwire_device_communicator_rank(NULL) == -1);
  tightwire_device_session_close(NULL);
  CHECK_OK(tightwire_communicator_in_process(1, &host));
  const tightwire_status status = tightwire_device_communicator_staged(host, 0, &communicator);
  if (status == TIGHTWIRE_OK) {
    CHECK(tightwire_device_communicator_size(communicator) == 1);
    tightwire_device_communicator_close(communicator);
  } else {
    CHECK(status == TIGHTWIRE_UNSUPPORTED && communicator == NULL);
    CHECK(strstr(tightwire_last_error(), "rank 0") != NULL);
  }
  printf("%s\n", status == TIGHTWIRE_OK ? "a device is here" : tightwire_last_error());
  tightwire_communicator_close(host);
  return 0;
}
