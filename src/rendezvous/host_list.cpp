#include "environment.hpp"

namespace tightwire::rendezvous {

std::string first_host(const std::string& list) {
  std::string host;
  bool in_brackets = false;
  bool first_of_range = true;
  for (const char c : list) {
    if (c == '[') {
      in_brackets = first_of_range = true;
    } else if (c == ']') {
      in_brackets = false;
    } else if (in_brackets) {
      first_of_range = first_of_range && c != ',' && c != '-';
      if (first_of_range) host += c;
    } else if (c == ',') {
      break;
    } else {
      host += c;
    }
  }
  return host;
}

bool names_several_hosts(const std::string& list) {
  bool in_brackets = false;
  for (const char c : list) {
    if (c == '[') in_brackets = true;
    if (c == ']') in_brackets = false;
    if (c == ',' || (c == '-' && in_brackets)) return true;
  }
  return false;
}

}  // namespace tightwire::rendezvous
