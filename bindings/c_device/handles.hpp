#pragma once
#include <memory>
#include <string>

#include <tightwire/tightwire_device.h>
#include <tightwire/cuda_transport.hpp>

#include "../c/handles.hpp"

// As tightwire_communicator; tightwire_device_session is in session.cpp.
struct tightwire_device_communicator {
  std::shared_ptr<tightwire::cuda::Transport> transport;
  std::string description;
  pid_t owner = getpid();
};
