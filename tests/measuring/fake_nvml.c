/* Stands for the driver's library on machines without: three devices, of which four links join the first two. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct pci_info {
  char legacy_bus[16];
  unsigned domain, bus, device, identity, subsystem;
  char bus_id[32];
};

static unsigned number(void* device) { return (unsigned)(uintptr_t)device - 1; }
static void write_bus(unsigned i, struct pci_info* info) {
  memset(info, 0, sizeof *info);
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", i + 1);
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) {
  *device = (void*)(uintptr_t)(i + 1);
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned bytes) {
  snprintf(name, bytes, "Fake %u", number(device));
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, struct pci_info* info) {
  write_bus(number(device), info);
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* level) {
  (void)a, (void)b;
  *level = 50;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  if (number(device) == 2) return 3; /* has none */
  *active = link < 4;
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, struct pci_info* info) {
  (void)link;
  write_bus(1 - number(device), info);
  return 0;
}
