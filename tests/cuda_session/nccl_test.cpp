#include "device_steps.hpp"
