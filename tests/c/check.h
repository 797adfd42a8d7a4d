#ifndef TIGHTWIRE_TESTS_CHECK_H
#define TIGHTWIRE_TESTS_CHECK_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tightwire/tightwire.h>

/* Ends the program, with the place and what the library last said, where a condition does not hold. */
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition, \
              tightwire_last_error());                                                             \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define CHECK_OK(call) CHECK((call) == TIGHTWIRE_OK)
/* The call fails with this status, and a text that contains this. */
#define CHECK_FAILS(call, status, text)                    \
  do {                                                     \
    CHECK((call) == (status));                             \
    CHECK(strstr(tightwire_last_error(), (text)) != NULL); \
  } while (0)

#endif
