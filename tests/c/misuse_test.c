/* What cannot work is a status and a text that says why; nothing ends the process. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void library(void) {
  CHECK(tightwire_abi_version() == TIGHTWIRE_ABI_VERSION);
  CHECK_FAILS(tightwire_require_abi(TIGHTWIRE_ABI_VERSION + 1), TIGHTWIRE_UNSUPPORTED, "was compiled for version 2");
  CHECK(strcmp(tightwire_status_name(TIGHTWIRE_PEER_LOST), "peer_lost") == 0);
  CHECK(strcmp(tightwire_status_name(99), "unknown") == 0 && strcmp(tightwire_status_name(-1), "unknown") == 0);
  CHECK(strstr(tightwire_info(), tightwire_version()) != NULL && strstr(tightwire_info(), "int4") != NULL);
}

/* Libraries beside this one tell of their failures as it does. */
static void failing(void) {
  CHECK_FAILS(tightwire_fail(TIGHTWIRE_DEVICE, "the device is on fire"), TIGHTWIRE_DEVICE, "the device is on fire");
  CHECK(tightwire_fail(TIGHTWIRE_OK, NULL) == TIGHTWIRE_OK && strcmp(tightwire_last_error(), "") == 0);
}

static void communicators(void) {
  tightwire_communicator* communicator = NULL;
  tightwire_rendezvous rendezvous = {.struct_size = sizeof rendezvous,
                                     .rank = 3,
                                     .size = 2,
                                     .address = "file:///tmp/x",
                                     .key = "key",
                                     .timeout_ms = 1000};
  CHECK_FAILS(tightwire_communicator_join(&rendezvous, &communicator), TIGHTWIRE_INVALID_ARGUMENT, "rank");
  CHECK_FAILS(tightwire_communicator_join(NULL, &communicator), TIGHTWIRE_INVALID_ARGUMENT, "null");
  CHECK_FAILS(tightwire_communicator_in_process(0, &communicator), TIGHTWIRE_INVALID_ARGUMENT, "1 to 1024");
  CHECK_FAILS(tightwire_communicator_gather(NULL, 1, 1000, NULL), TIGHTWIRE_INVALID_ARGUMENT, "null");
  CHECK(communicator == NULL && tightwire_communicator_rank(NULL) == -1);
  tightwire_communicator_close(NULL);
}

static void replicas(tightwire_communicator* communicator) {
  tightwire_replica replica = {.struct_size = sizeof replica, .name = "weight"};
  CHECK_OK(tightwire_communicator_compare(communicator, 1, &replica, 1, 1000));
  replica.size = 4;
  CHECK_FAILS(tightwire_communicator_compare(communicator, 1, &replica, 1, 1000), TIGHTWIRE_INVALID_ARGUMENT, "null");
  CHECK_FAILS(tightwire_communicator_compare(communicator, 1, NULL, 1, 1000), TIGHTWIRE_INVALID_ARGUMENT, "null");
  CHECK_FAILS(tightwire_communicator_compare(communicator, 1, NULL, 0, 0), TIGHTWIRE_INVALID_ARGUMENT, "timeout_ms");
}

/* Structures of callers that are compiled against a later tightwire.h: longer than ours. */
struct later {
  union {
    size_t struct_size;
    tightwire_rendezvous rendezvous;
    tightwire_replica replica;
    tightwire_buffer buffer;
    tightwire_statistics statistics;
  } now;
  uint64_t later[2];
};

/* Calls that take a structure, which lies at the end of `room` rather than at its begin, as far as it is longer. */
static tightwire_status give_rendezvous(tightwire_session* session, void* structure) {
  tightwire_communicator* communicator = NULL;
  (void)session;
  const tightwire_status status = tightwire_communicator_join(structure, &communicator);
  tightwire_communicator_close(communicator);
  return status;
}
static tightwire_communicator* of_replicas;
static tightwire_status give_replica(tightwire_session* session, void* structure) {
  (void)session;
  return tightwire_communicator_compare(of_replicas, 1, structure, 1, 1000);
}
static tightwire_status give_buffer(tightwire_session* session, void* structure) {
  return tightwire_session_add_buffer(session, structure, NULL);
}
static tightwire_status give_statistics(tightwire_session* session, void* structure) {
  return tightwire_session_statistics(session, TIGHTWIRE_ALL_STEPS, structure);
}

/* Of every structure that grows: a shorter one than version 1 has, and one whose size was never set, are refused; a
 * longer one is as one of ours where it asks for nothing that we do not know, and is refused where it does. */
static void structures(tightwire_communicator* communicator) {
  const int64_t shape[] = {4, 4};
  struct later rendezvous = {.now.rendezvous = {.rank = 0, .size = 1}};
  struct later replica = {.now.replica = {.name = "weight"}};
  struct later buffer = {.now.buffer = {.name = "w", .shape = shape, .dimensions = 2}};
  struct later statistics = {.later = {77, 78}};
  const struct {
    tightwire_status (*give)(tightwire_session* session, void* structure);
    struct later* structure;
    size_t size;
    int32_t* reserved;
  } kinds[] = {
      {give_rendezvous, &rendezvous, sizeof(tightwire_rendezvous), NULL},
      {give_replica, &replica, sizeof(tightwire_replica), &replica.now.replica.reserved},
      {give_buffer, &buffer, sizeof(tightwire_buffer), &buffer.now.buffer.reserved},
      {give_statistics, &statistics, sizeof(tightwire_statistics), NULL},
  };
  tightwire_session* session = NULL;
  CHECK_OK(tightwire_session_open(communicator, "exact", &session));
  of_replicas = communicator;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    size_t* const size = &kinds[i].structure->now.struct_size;
    const size_t wrong[] = {0, kinds[i].size - sizeof(int64_t), kinds[i].size + 1, SIZE_MAX};
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; ++w) {
      *size = wrong[w];
      CHECK_FAILS(kinds[i].give(session, kinds[i].structure), TIGHTWIRE_INVALID_ARGUMENT, "no version has");
    }
    unsigned char* const beyond = (unsigned char*)kinds[i].structure + kinds[i].size;
    *size = kinds[i].size + sizeof(uint64_t);
    if (kinds[i].give == give_statistics) {
      memset(beyond, 77, sizeof(uint64_t));
      CHECK_OK(kinds[i].give(session, kinds[i].structure));
      CHECK(beyond[0] == 77 && beyond[7] == 77 && *size == kinds[i].size + sizeof(uint64_t));
      continue;
    }
    beyond[7] = 1;
    CHECK_FAILS(kinds[i].give(session, kinds[i].structure), TIGHTWIRE_UNSUPPORTED, "this library knows the first ");
    beyond[7] = 0;
    if (kinds[i].reserved != NULL) {
      *kinds[i].reserved = 1;
      CHECK_FAILS(kinds[i].give(session, kinds[i].structure), TIGHTWIRE_UNSUPPORTED, "reserved must be 0");
      *kinds[i].reserved = 0;
    }
    CHECK_OK(kinds[i].give(session, kinds[i].structure));
  }
  tightwire_session_close(session);
}

static void specifications(tightwire_communicator* communicator) {
  static const char* const kWrong[][2] = {
      {"int9", "not known; known are exact"},
      {"int8 int4", "\"int4\": not known"},
      {"int8 colour=red", "\"colour=red\": not known; known are exact=, rule="},
      {"exact=", "must be exact=PATTERN"},
      {"int8 rule=*.weight", "must be rule=PATTERN=CODEC"},
      {"int8 rule=*.weight=int9", "codec \"int9\""},
      {"int8 feedback=maybe", "must be on or off"},
      {"int8 operation=max", "must be mean or sum"},
      {"int8 timeout=-1", "must be seconds above 0"},
      {"int8 timeout=1e10", "at most 1e9"},
      {"int8 seed=one", "\"one\" is no such number"},
      {"int8 telemetry=", "no folder that can be made"},
      {"int8 telemetry=/dev/null/here", "no folder that can be made"},
      {"int8 levels=node:2", "levels=node:2: 1 ranks are no multiple of 2"},
      {"int8 levels=node:0", "a node has at least 1 rank"},
      {"int8 levels=node:1+", "a node has at least 1 rank"},
      {"int8 levels=node:1+1", "these are 2 ranks, and there are 1"},
      {"int8 levels=rack:8", "known are auto, node:<ranks of each>"},
      {"int8 inside=bf16", "is of nodes, and levels= says none"},
      {"int8 levels=auto inside=bf15", "codec \"bf15\""},
      {"hier(inside=exact)", "does not say across=CODEC"},
      {"hier(across=int4, inside=int9)", "codec \"int9\""},
      {"hier(int4)", "\"int4\" is not known; known are inside=CODEC"},
      {"hier(across=int4, across=int8)", "across is given twice"},
      {"hier(across=int4, inside=)", "nothing comes after inside="},
      {"hier(across=int4", "the closing ) is missing"},
      {"int8 exact=block(1 feedback=off", "\"exact=block(1 feedback=off\": the closing ) is missing"},
      {"hier(across=hier(across=int4))", "is for a whole Session"},
      {"hier(across=int4) inside=bf16", "belongs between the brackets"},
      {"hier(across=int4, levels=node:1) levels=node:1", "has levels already"},
      {"int8 rule=a=hier(across=int4)", "is for a whole Session"},
      {"int8 algorithm=star", "must be automatic, two_shot, one_shot, ring or tree"},
      {"int8 nonfinite=ignore", "must be propagate, skip_step or error"},
      {"int8 nonfinite=skip_step rollback=off", "\"rollback=off\": the policy skip_step needs rollback"},
      {"rollback=off nonfinite=skip_step feedback=on", "\"nonfinite=skip_step\": the policy skip_step needs rollback"},
      {"momentum=0.9 optimizer-momentum=0 feedback=off", "\"feedback=off\": momentum correction needs"},
      {"int8 levels", "\"levels\": not known"},
      {"int8 levels=", "known are auto, node:"},
      {"int8 nesterov=maybe", "must be on or off"},
      {"int8 momentum=fast", "\"fast\" is no such number"},
      {"int8 optimizer-momentum=", "is no such number"},
      {"int8 residual=fp16", "must be fp32 or bf16"},
  };
  for (size_t i = 0; i < sizeof kWrong / sizeof kWrong[0]; ++i) {
    tightwire_session* session = NULL;
    CHECK_FAILS(tightwire_session_open(communicator, kWrong[i][0], &session), TIGHTWIRE_INVALID_ARGUMENT, kWrong[i][1]);
    CHECK(session == NULL);
  }
}

static void describes(tightwire_communicator* communicator, const char* specification, const char* expected) {
  const int64_t shape[] = {64, 64};
  tightwire_session* session = NULL;
  const char* text = NULL;
  CHECK_OK(tightwire_session_open(communicator, specification, &session));
  CHECK_OK(tightwire_session_add(session, "w", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_OK(tightwire_session_seal(session));
  CHECK_OK(tightwire_session_description(session, &text));
  CHECK(strstr(text, expected) != NULL);
  tightwire_session_close(session);
}

/* Every word of a specification arrives: in the description, or in what the Session does. */
static void options(tightwire_communicator* communicator) {
  const int64_t shape[] = {64, 64};
  tightwire_session* session = NULL;
  const char* text = NULL;
  CHECK_OK(tightwire_session_open(communicator,
                                  " int4:block=32  operation=sum feedback=off rollback=off seed=42 nonfinite=error"
                                  " levels=node:1 inside=bf16 rule=head.*=bf16 exact=*norm* small=compressed "
                                  "bucket-bytes=1 timeout=5.5 algorithm=tree\n",
                                  &session));
  CHECK_OK(tightwire_session_add(session, "body.weight", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_OK(tightwire_session_add(session, "head.weight", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_OK(tightwire_session_add(session, "body.norm", shape, 2, TIGHTWIRE_FLOAT16, NULL));
  CHECK_OK(tightwire_session_add(session, "body.bias", shape, 1, TIGHTWIRE_BFLOAT16, NULL));
  CHECK_OK(tightwire_session_seal(session));
  CHECK_OK(tightwire_session_description(session, &text));
  static const char* const kExpected[] = {"operation sum",
                                          "error feedback off",
                                          ", inside bf16",
                                          "rollback off",
                                          "non-finite policy error",
                                          "seed 42",
                                          "\"body.weight\" [64,64] fp32 int4:block=32",
                                          "\"head.weight\" [64,64] fp32 bf16",
                                          "\"body.norm\" [64,64] fp16 exact",
                                          "\"body.bias\" [64] bf16 int4:block=32",
                                          "bucket 3 of parameters 3: tree"};
  for (size_t i = 0; i < sizeof kExpected / sizeof kExpected[0]; ++i)
    if (strstr(text, kExpected[i]) == NULL) {
      fprintf(stderr, "\"%s\" is not in:\n%s", kExpected[i], text);
      exit(1);
    }
  tightwire_session_close(session);
  CHECK_OK(tightwire_session_open(communicator, "exact=*", &session)); /* no codec: int8 */
  tightwire_session_close(session);
  describes(communicator, "int8 momentum=0.875 nesterov=on optimizer-momentum=0",
            "momentum correction 0.875, Nesterov");
  describes(communicator, "int8 residual=bf16", "residuals in bf16");
}

static tightwire_status open_text(tightwire_communicator* communicator, const char* text, tightwire_session** session) {
  char path[] = "/tmp/tightwire-c-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
  const tightwire_status status = tightwire_session_open_file(communicator, path, session);
  CHECK(unlink(path) == 0);
  return status;
}

/* A file says what a specification says. */
static void files(tightwire_communicator* communicator) {
  static const char* const kSame[] = {
      "hier(inside=bf16, across=int4:block=32) exact=*.bias exact=*norm* feedback=off timeout=5.5 seed=12000"
      " rule=head.*=bf16 rule=stem.*=int8",
      "# of this job\r\nseed = 12_000\n codec = \"hier(inside=bf16, across=int4:block=32)\"  # over nodes\n"
      "exact = [ '*.bias', # small\n  \"*norm*\",\n]\nfeedback=false\ntimeout = +5.5\n\n[[rule]]\nname = 'head.*'\n"
      "codec = \"bf16\"\n[[rule]]\ncodec = 'int8'\nname = 'stem.*'"};
  static const char* const kNames[] = {"head.weight", "stem.weight", "body.weight", "norm.weight"};
  const int64_t shape[] = {64, 64};
  char texts[2][4000];
  for (int i = 0; i < 2; ++i) {
    tightwire_session* session = NULL;
    const char* text = NULL;
    CHECK_OK(i == 0 ? tightwire_session_open(communicator, kSame[i], &session)
                    : open_text(communicator, kSame[i], &session));
    for (int p = 0; p < 4; ++p) CHECK_OK(tightwire_session_add(session, kNames[p], shape, 2, TIGHTWIRE_FLOAT32, NULL));
    CHECK_OK(tightwire_session_seal(session));
    CHECK_OK(tightwire_session_description(session, &text));
    snprintf(texts[i], sizeof texts[i], "%s", text);
    tightwire_session_close(session);
  }
  CHECK(strcmp(texts[0], texts[1]) == 0 && strstr(texts[0], "\"head.weight\" [64,64] fp32 bf16") != NULL);

  static const char* const kWrong[][2] = {
      {"\ncodec = \"int9\"\n", "line 2: codec = \"int9\": codec \"int9\""},
      {"codec = \"feedback=off\"", "line 1: codec = \"feedback=off\": codec \"feedback=off\""},
      {"\"int4:block\" = 32", "line 1: there is no key \"int4:block\""},
      {"'exact=a' = 'b'", "line 1: there is no key"},
      {"seed = 1\ncolour = 'red'\n", "line 2: colour = \"red\": not known"},
      {"seed = 1\n\nfeedback = 'false'\n", "line 3: feedback = \"false\": must be on or off; in a file true or false"},
      {"codec = 'int8'\nseed = -1\n", "line 2: seed = -1: \"-1\" is no such number"},
      {"codec = 'int8'\nsmall = true\n", "line 2: small = true: must be compressed or exact"},
      {"nonfinite = 'skip_step'\nrollback = false", "line 2: rollback = false: the policy skip_step needs rollback"},
      {"codec = 'int8'\nlevels = 'node:1'\n\ninside = 'int9'", "line 4: inside = \"int9\": codec \"int9\""},
      {"levels = 'node:2'", "line 1: levels = \"node:2\": levels=node:2: 1 ranks are no multiple"},
      {"[[rule]]\nname = 'a'\ncodec = 'int9'", "line 3: codec = \"int9\": codec \"int9\""},
      {"\n\ncodec = int8", "line 3: "},
      {"codec = 4", "line 1: codec must be a string"},
      {"codec = 'int8\n'", "line 1: "},
      {"codec 'int8'", "line 1: "},
      {"exact = ['a' 'b']", "line 1: "},
      {"exact = [1]", "line 1: \"exact\" must be a string, or a list of strings"},
      {"exact = ['a',", "line 1: "},
      {"seed = 1\nseed = 2", "line 2: "},
      {"timeout = inf", "line 1: a value must be"},
      {"\ntimeout = 1979-05-27", "line 2: a value must be"},
      {"[session]", "line 1: the only tables are [[rule]]"},
      {"[[rule]]\nname = 'a'\n", "line 1: a rule has a name and a codec"},
      {"[[rule]]\nname = 'a=b'\ncodec = 'int8'", "line 2: the name of a rule has a \"=\""},
      {"[[rule]]\nseed = 7\n", "line 1: a rule has a name and a codec, both strings"},
      {"rule = 'a=int8'", "line 1: rules are tables"},
  };
  for (size_t i = 0; i < sizeof kWrong / sizeof kWrong[0]; ++i) {
    tightwire_session* session = NULL;
    CHECK_FAILS(open_text(communicator, kWrong[i][0], &session), TIGHTWIRE_INVALID_ARGUMENT, kWrong[i][1]);
    CHECK(session == NULL && strstr(tightwire_last_error(), "/tmp/tightwire-c-") != NULL);
    CHECK(strncmp(kWrong[i][1], "line ", 5) == 0);
  }
  tightwire_session* session = NULL;
  CHECK_FAILS(open_text(communicator, "", &session), TIGHTWIRE_INVALID_ARGUMENT, "cannot be read, or is empty");
  CHECK_FAILS(tightwire_session_open_file(communicator, "/nowhere", &session), TIGHTWIRE_INVALID_ARGUMENT, "/nowhere");
  CHECK_FAILS(tightwire_session_open_file(communicator, NULL, &session), TIGHTWIRE_INVALID_ARGUMENT, "null");
}

static void sessions(tightwire_communicator* communicator) {
  const int64_t shape[] = {4, 4}, negative[] = {-1};
  float gradient[16] = {0};
  void* pointer = gradient;
  void* nothing = NULL;
  tightwire_session* session = NULL;
  const size_t unknown = 7;
  size_t ids = 0;
  CHECK_FAILS(tightwire_session_open(NULL, "int8", &session), TIGHTWIRE_INVALID_ARGUMENT, "handle is null");
  CHECK_FAILS(tightwire_session_open(communicator, NULL, &session), TIGHTWIRE_INVALID_ARGUMENT, "null");
  CHECK_OK(tightwire_session_open(communicator, "exact nonfinite=error", &session));
  CHECK_FAILS(tightwire_session_add(session, NULL, shape, 2, TIGHTWIRE_FLOAT32, NULL), TIGHTWIRE_INVALID_ARGUMENT,
              "name");
  CHECK_FAILS(tightwire_session_add(session, "w", negative, 1, TIGHTWIRE_FLOAT32, NULL), TIGHTWIRE_INVALID_ARGUMENT,
              "-1");
  CHECK_FAILS(tightwire_session_add(session, "w", shape, 2, (tightwire_type)9, NULL), TIGHTWIRE_INVALID_ARGUMENT,
              "type 9");
  CHECK_OK(tightwire_session_add(session, "w", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_FAILS(tightwire_session_add(session, "w", shape, 2, TIGHTWIRE_FLOAT32, NULL), TIGHTWIRE_INVALID_ARGUMENT,
              "before");
  CHECK_FAILS(tightwire_session_add_bucket(session, &unknown, 1, NULL), TIGHTWIRE_INVALID_ARGUMENT, "no parameter 7");
  CHECK_FAILS(tightwire_session_set_priority(session, unknown, 1), TIGHTWIRE_INVALID_ARGUMENT, "no parameter 7");
  CHECK_FAILS(tightwire_session_start(session, 0, &pointer, 1), TIGHTWIRE_INVALID_ARGUMENT, "call seal() first");
  CHECK_FAILS(tightwire_session_wait(session, 0), TIGHTWIRE_INVALID_ARGUMENT, "not sealed");
  const tightwire_buffer wrong = {
      .struct_size = sizeof wrong, .name = "x", .shape = shape, .dimensions = 2, .operation = (tightwire_operation)9};
  CHECK_FAILS(tightwire_session_add_buffer(session, &wrong, NULL), TIGHTWIRE_INVALID_ARGUMENT, "no operation 9");
  CHECK_FAILS(tightwire_session_add_buffer(session, NULL, NULL), TIGHTWIRE_INVALID_ARGUMENT, "buffer is null");
  CHECK_OK(tightwire_session_seal(session));
  CHECK_FAILS(tightwire_session_bucket_of(session, 5, &ids), TIGHTWIRE_INVALID_ARGUMENT, "no parameter 5");
  CHECK_FAILS(tightwire_session_seal(session), TIGHTWIRE_INVALID_ARGUMENT, "sealed");
  CHECK_FAILS(tightwire_session_wait(session, 0), TIGHTWIRE_INVALID_ARGUMENT, "not started");
  CHECK_FAILS(tightwire_session_start(session, 5, &pointer, 1), TIGHTWIRE_INVALID_ARGUMENT, "no bucket 5");
  CHECK_FAILS(tightwire_session_start(session, 0, &nothing, 1), TIGHTWIRE_INVALID_ARGUMENT, "\"w\" is null");
  CHECK_FAILS(tightwire_session_start(session, 0, &pointer, 2), TIGHTWIRE_INVALID_ARGUMENT, "2 pointers");
  CHECK_FAILS(tightwire_session_statistics(session, TIGHTWIRE_ALL_STEPS, NULL), TIGHTWIRE_INVALID_ARGUMENT, "null");
  gradient[3] = INFINITY;
  CHECK_OK(tightwire_session_start(session, 0, &pointer, 1));
  CHECK_FAILS(tightwire_session_wait(session, 0), TIGHTWIRE_NONFINITE, "non-finite");
  CHECK_OK(tightwire_session_rollback(session));
  tightwire_session_close(session);
  tightwire_session_close(NULL);
}

/* A child of fork() is told so, and closing there does not disturb the parent. */
static void fork_after_use(tightwire_communicator* communicator) {
  const int64_t shape[] = {4, 4};
  float gradient[16] = {1};
  void* pointer = gradient;
  tightwire_session* session = NULL;
  CHECK_OK(tightwire_session_open(communicator, "exact", &session));
  CHECK_OK(tightwire_session_add(session, "w", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_OK(tightwire_session_seal(session));
  CHECK_OK(tightwire_session_start(session, 0, &pointer, 1)); /* so that there is a thread to lose */
  CHECK_OK(tightwire_session_wait(session, 0));
  const pid_t child = fork();
  if (child == 0) {
    CHECK_FAILS(tightwire_session_start(session, 0, &pointer, 1), TIGHTWIRE_UNSUPPORTED, "is a fork");
    tightwire_session_close(session);
    tightwire_communicator_close(communicator);
    _exit(0);
  }
  int status = 1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_OK(tightwire_session_commit(session, NULL));
  tightwire_session_close(session);
}

/* Two ranks, as threads. */
struct pair {
  tightwire_communicator* communicator;
  const char* specification;
  tightwire_status status;
  char text[400];
};

static void* seal_as_told(void* argument) {
  struct pair* rank = argument;
  const int64_t shape[] = {64, 64};
  tightwire_session* session = NULL;
  CHECK_OK(tightwire_session_open(rank->communicator, rank->specification, &session));
  CHECK_OK(tightwire_session_add(session, "w", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  rank->status = tightwire_session_seal(session);
  snprintf(rank->text, sizeof rank->text, "%s", tightwire_last_error());
  tightwire_session_close(session);
  return NULL;
}

static void ranks_that_differ(void) {
  tightwire_communicator* both[2];
  CHECK_OK(tightwire_communicator_in_process(2, both));
  struct pair ranks[2] = {{both[0], "int8", TIGHTWIRE_OK, ""}, {both[1], "int4", TIGHTWIRE_OK, ""}};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, seal_as_told, &ranks[i]) == 0);
  for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < 2; ++i) {
    CHECK(ranks[i].status == TIGHTWIRE_MISMATCH);
    CHECK(strstr(ranks[i].text, "int8") != NULL && strstr(ranks[i].text, "int4") != NULL);
  }
  /* The text is of the thread that failed: this one never did so here. */
  CHECK(strstr(tightwire_last_error(), "ranks disagree") == NULL);
  for (int i = 0; i < 2; ++i) tightwire_communicator_close(both[i]);
}

static void a_rank_that_gives_up(void) {
  tightwire_communicator* both[2];
  uint64_t values[2];
  CHECK_OK(tightwire_communicator_in_process(2, both));
  CHECK_OK(tightwire_communicator_abort(both[1], "out of data"));
  CHECK_FAILS(tightwire_communicator_gather(both[0], 1, 5000, values), TIGHTWIRE_PEER_LOST, "out of data");
  for (int i = 0; i < 2; ++i) tightwire_communicator_close(both[i]);
}

int main(void) {
  tightwire_communicator* alone = NULL;
  library();
  failing();
  communicators();
  CHECK_OK(tightwire_communicator_from_environment(&alone));
  CHECK(tightwire_communicator_size(alone) == 1);
  replicas(alone);
  structures(alone);
  specifications(alone);
  options(alone);
  files(alone);
  sessions(alone);
  fork_after_use(alone);
  tightwire_communicator_close(alone);
  ranks_that_differ();
  a_rank_that_gives_up();
  return 0;
}
