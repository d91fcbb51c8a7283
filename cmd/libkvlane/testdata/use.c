/*
 * A program that uses the library as an engine would: use DRIVER DIR. It prints "ok", or what went wrong and where. With the driver
 * "host" its KV cache is its own memory and blocks have to come back as they were; with others only statuses are looked at.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvlane.h"

enum { LAYERS = 2, PLANES = 2 * LAYERS, PAGES = 64, TOKENS = 16, BLOCKS = 8, PAGE_BYTES = TOKENS * 64 * 2, PATIENCE = 20000 };

static int failures;

static void expect(const char *what, kvl_status got, kvl_status want, int line) {
  if (got == want) return;
  printf("line %d: %s: %s (%s), not %s\n", line, what, kvl_status_name(got), kvl_error(), kvl_status_name(want));
  failures++;
}

#define EXPECT(want, call) expect(#call, call, want, __LINE__)
#define CHECK(truth)                                              \
  do {                                                            \
    if (!(truth)) {                                               \
      printf("line %d: not so: %s\n", __LINE__, #truth);          \
      failures++;                                                 \
    }                                                             \
  } while (0)

static const char *driver, *dir;
static int host; /* whether the KV cache is memory of this process */
static uint8_t kv[PLANES][PAGES][PAGE_BYTES];
static uint8_t keys[BLOCKS][KVL_KEY_BYTES];

static kvl_engine engine;
static kvl_cache cache;

static void start(void) {
  char config[2000];
  uint64_t planes[PLANES];
  kvl_group_memory memory = {planes, PLANES, PAGES, PAGE_BYTES, 0};
  uint8_t hashes[BLOCKS][KVL_HASH_BYTES], rest[KVL_HASH_BYTES];
  int64_t tokens[BLOCKS * TOKENS];
  int i;
  snprintf(config, sizeof config,
           "{\"model\": {\"name\": \"m\", \"dtype\": \"bfloat16\", \"layers\": %d, \"kv_heads\": 1, \"head_size\": 64, \"block_tokens\": %d},"
           " \"device\": {\"driver\": \"%s\"}, \"store\": {\"cache_bytes\": 4194304, \"dirs\": [\"%s\"]}}",
           LAYERS, TOKENS, driver, dir);
  EXPECT(KVL_OK, kvl_open(config, &engine));
  for (i = 0; i < PLANES; i++) planes[i] = (uint64_t)(uintptr_t)kv[i];
  EXPECT(KVL_OK, kvl_register_cache(engine, &memory, 1, &cache));
  for (i = 0; i < BLOCKS * TOKENS; i++) tokens[i] = 1000 + i;
  EXPECT(KVL_OK, kvl_hash_tokens(NULL, tokens, BLOCKS * TOKENS + 0, TOKENS, hashes[0]));
  EXPECT(KVL_OK, kvl_hash_tokens(hashes[BLOCKS - 2], tokens + (BLOCKS - 1) * TOKENS, TOKENS + 3, TOKENS, rest));
  CHECK(memcmp(rest, hashes[BLOCKS - 1], sizeof rest) == 0);
  EXPECT(KVL_OK, kvl_keys(engine, 0, hashes[0], KVL_HASH_BYTES, BLOCKS, keys[0]));
}

static void stop(void) {
  EXPECT(KVL_OK, kvl_close_cache(cache, PATIENCE));
  EXPECT(KVL_CLOSED, kvl_close_cache(cache, 0));
  EXPECT(KVL_OK, kvl_close(engine, PATIENCE));
  EXPECT(KVL_CLOSED, kvl_close(engine, 0));
}

static uint8_t byte_of(int plane, int block, int i) { return (uint8_t)(plane * 31 + block * 7 + i + (i >> 8)); }

/* Blocks of pages 0 and on are dumped, the engine is closed and opened again, and they are loaded to other pages. */
static void carry(void) {
  uint32_t from[BLOCKS], to[BLOCKS];
  uint8_t there[BLOCKS];
  kvl_result results[BLOCKS];
  kvl_task task;
  kvl_lease lease;
  size_t found, worth;
  char text[100];
  int p, b, i;
  for (b = 0; b < BLOCKS; b++) {
    from[b] = (uint32_t)b;
    to[b] = (uint32_t)(PAGES - 1 - 2 * b);
    for (p = 0; p < PLANES; p++)
      for (i = 0; i < PAGE_BYTES; i++) kv[p][b][i] = byte_of(p, b, i);
  }
  start();
  EXPECT(KVL_OK, kvl_dump_blocks(engine, cache, keys[0], from, BLOCKS, NULL, 0, NULL, &task));
  if (host) {
    EXPECT(KVL_OK, kvl_wait(task, KVL_SOURCE_FREE, PATIENCE));
    EXPECT(KVL_OK, kvl_wait(task, KVL_PUBLISHED, PATIENCE));
    EXPECT(KVL_OK, kvl_wait(task, KVL_DONE, KVL_FOREVER));
  } else {
    CHECK(kvl_wait(task, KVL_DONE, PATIENCE) < 0); /* the device has no such memory, and says so */
    CHECK(strlen(kvl_error()) > 10);
  }
  EXPECT(KVL_OK, kvl_results(task, results, BLOCKS));
  for (b = 0; b < BLOCKS; b++) CHECK(host == (results[b].status == KVL_OK));
  found = sizeof text;
  EXPECT(KVL_OK, kvl_left_out(task, text, &found));
  CHECK(strcmp(text, "[]") == 0 && found == 3);
  EXPECT(KVL_OK, kvl_free(task));
  EXPECT(KVL_INVALID, kvl_free(task));
  stop();

  memset(kv, 0, sizeof kv);
  start();
  EXPECT(KVL_OK, kvl_lookup(engine, keys[0], BLOCKS, there, 0));
  EXPECT(KVL_OK, kvl_prefetch(engine, keys[0], host ? BLOCKS : 0, &task));
  EXPECT(KVL_OK, kvl_wait(task, KVL_DONE, PATIENCE));
  EXPECT(KVL_OK, kvl_lease_blocks(engine, keys[0], BLOCKS, 0, PATIENCE, &lease, &found));
  for (b = 0; b < BLOCKS; b++) CHECK(there[b] == (host ? KVL_IN_FILES : 0));
  CHECK(found == (host ? (size_t)BLOCKS : 0));
  EXPECT(KVL_OK, kvl_report_computed(engine, 1000, 0.5));
  EXPECT(KVL_OK, kvl_report_delay(engine, 0.5));
  EXPECT(KVL_OK, kvl_worth(lease, 1000, 0, &worth));
  CHECK(worth == found);
  EXPECT(KVL_OK, kvl_load_blocks(engine, lease, cache, keys[0], to, found, NULL, KVL_LAYERWISE, NULL, &task));
  EXPECT(KVL_OK, kvl_wait(task, KVL_LAYER(0), PATIENCE));
  EXPECT(KVL_OK, kvl_wait(task, KVL_LAYER(LAYERS - 1), PATIENCE));
  EXPECT(KVL_OK, kvl_wait(task, KVL_DONE, PATIENCE));
  EXPECT(KVL_OK, kvl_results(task, results, found));
  EXPECT(KVL_OK, kvl_release(lease));
  EXPECT(KVL_EXPIRED, kvl_release(lease));
  for (p = 0; p < PLANES; p++)
    for (b = 0; b < (int)found; b++)
      for (i = 0; i < PAGE_BYTES; i++)
        if (kv[p][to[b]][i] != byte_of(p, b, i)) {
          printf("plane %d, block %d: byte %d is another\n", p, b, i);
          failures++;
          i = PAGE_BYTES;
        }
  EXPECT(KVL_OK, kvl_load_blocks(engine, 0, cache, keys[0], to, 0, NULL, 0, NULL, &task));
  EXPECT(KVL_OK, kvl_cancel(task));
}

/* Copies that are no blocks, within the program's memory. */
static void copies(void) {
  static uint8_t from[8192], to[8192];
  const uint64_t at[2] = {0, 4096}, back[2] = {4096, 0}, bytes[2] = {4096, 4096};
  kvl_memory source, target;
  kvl_stream stream;
  kvl_task task;
  memset(from, 1, 4096);
  memset(from + 4096, 2, 4096);
  EXPECT(KVL_OK, kvl_register_memory(engine, (uint64_t)(uintptr_t)from, sizeof from, KVL_HOST, &source));
  EXPECT(KVL_OK, kvl_register_memory(engine, (uint64_t)(uintptr_t)to, sizeof to, KVL_HOST, &target));
  EXPECT(KVL_OK, kvl_open_stream(engine, &stream));
  EXPECT(KVL_OK, kvl_copy(stream, target, at, source, back, bytes, 2, NULL, PATIENCE, &task));
  EXPECT(KVL_OK, kvl_wait(task, KVL_DONE, PATIENCE));
  EXPECT(KVL_OK, kvl_free(task));
  CHECK(to[0] == 2 && to[4095] == 2 && to[4096] == 1 && to[8191] == 1);
  EXPECT(KVL_OK, kvl_unregister_memory(source, PATIENCE));
  EXPECT(KVL_CLOSED, kvl_unregister_memory(source, PATIENCE));
  EXPECT(KVL_OK, kvl_close_stream(stream, PATIENCE));
}

/* NULL is an error wherever something is needed, and crashes nothing. */
static void nothing(void) {
  kvl_group_memory none = {NULL, 4, 1, 1, 0};
  uint32_t page = 0;
  kvl_cache c;
  kvl_task t;
  kvl_lease l;
  size_t n = 0;
  EXPECT(KVL_INVALID, kvl_open(NULL, &engine));
  EXPECT(KVL_INVALID, kvl_open("{}", NULL));
  EXPECT(KVL_INVALID, kvl_register_cache(engine, NULL, 1, &c));
  EXPECT(KVL_INVALID, kvl_register_cache(engine, NULL, 0, &c));
  EXPECT(KVL_INVALID, kvl_register_cache(engine, &none, 1, &c));
  EXPECT(KVL_INVALID, kvl_register_cache(engine, &none, SIZE_MAX, &c));
  EXPECT(KVL_INVALID, kvl_hash_tokens(NULL, NULL, 16, 16, keys[0]));
  EXPECT(KVL_INVALID, kvl_hash_tokens(NULL, (int64_t[16]){0}, 16, 16, NULL));
  EXPECT(KVL_INVALID, kvl_hash_tokens(NULL, (int64_t[16]){0}, 16, 0, keys[0]));
  EXPECT(KVL_INVALID, kvl_keys(engine, 0, NULL, 32, 1, keys[0]));
  EXPECT(KVL_INVALID, kvl_keys(engine, 0, keys[0], 32, 1, NULL));
  EXPECT(KVL_INVALID, kvl_keys(engine, 0, keys[0], SIZE_MAX, 2, keys[0]));
  EXPECT(KVL_INVALID, kvl_lookup(engine, NULL, 1, keys[0], 0));
  EXPECT(KVL_INVALID, kvl_worth(engine, 1, 0, &n));
  EXPECT(KVL_INVALID, kvl_worth(engine, 1, 0, NULL));
  EXPECT(KVL_INVALID, kvl_report_computed(engine, 1, -1));
  EXPECT(KVL_INVALID, kvl_register_memory(engine, 0, 1, KVL_HOST, &l));
  EXPECT(KVL_INVALID, kvl_register_memory(engine, 4096, 1, 7, &l));
  EXPECT(KVL_INVALID, kvl_register_memory(engine, 4096, 1, KVL_HOST, NULL));
  EXPECT(KVL_INVALID, kvl_open_stream(engine, NULL));
  EXPECT(KVL_INVALID, kvl_copy(engine, engine, NULL, engine, NULL, NULL, 1, NULL, 0, &t));
  copies();
  EXPECT(KVL_INVALID, kvl_lookup(engine, keys[0], 1, NULL, 0));
  EXPECT(KVL_INVALID, kvl_lease_blocks(engine, NULL, 1, 0, 0, &l, &n));
  EXPECT(KVL_INVALID, kvl_lease_blocks(engine, keys[0], 1, 0, 0, NULL, &n));
  EXPECT(KVL_INVALID, kvl_lease_blocks(engine, keys[0], 1, 0, 0, &l, NULL));
  EXPECT(KVL_INVALID, kvl_load_blocks(engine, 0, cache, NULL, &page, 1, NULL, 0, NULL, &t));
  EXPECT(KVL_INVALID, kvl_load_blocks(engine, 0, cache, keys[0], NULL, 1, NULL, 0, NULL, &t));
  EXPECT(KVL_INVALID, kvl_load_blocks(engine, 0, cache, keys[0], &page, 1, NULL, 0, NULL, NULL));
  EXPECT(KVL_INVALID, kvl_dump_blocks(engine, cache, keys[0], NULL, SIZE_MAX, NULL, 0, NULL, &t));
  EXPECT(KVL_INVALID, kvl_dump_blocks(engine, cache, keys[0], &page, 1, NULL, 0, NULL, NULL));
  EXPECT(KVL_INVALID, kvl_prefetch(engine, NULL, 1, &t));
  EXPECT(KVL_INVALID, kvl_prefetch(engine, NULL, 0, NULL));
  EXPECT(KVL_OK, kvl_prefetch(engine, NULL, 0, &t));
  EXPECT(KVL_OK, kvl_wait(t, KVL_DONE, PATIENCE));
  EXPECT(KVL_INVALID, kvl_left_out(t, NULL, NULL));
  EXPECT(KVL_INVALID, kvl_results(t, NULL, 1));
  EXPECT(KVL_OK, kvl_results(t, NULL, 0));
  EXPECT(KVL_INVALID, kvl_stats(engine, NULL, NULL));
  EXPECT(KVL_NO_SPACE, kvl_stats(engine, NULL, &n));
  CHECK(n > 100);
  EXPECT(KVL_INVALID, kvl_stats(engine, NULL, &n));
  EXPECT(KVL_INVALID, kvl_stream_wait(engine, 0, 0, KVL_DONE));
  EXPECT(KVL_INVALID, kvl_submit_layer(t, 0, NULL));
  EXPECT(KVL_INVALID, kvl_report_slowdown(0, 1));
  EXPECT(KVL_OK, kvl_report_slowdown(engine, 1));
}

static void words(void) {
  char buffer[40000];
  size_t n = sizeof buffer;
  EXPECT(KVL_OK, kvl_read_config("{\"config\": \"/dev/null\", \"tenant\": \"t\"}", buffer, &n));
  CHECK(strcmp(buffer, "{\"tenant\":\"t\"}") == 0 && n == strlen(buffer) + 1);
  EXPECT(KVL_INVALID, kvl_read_config(NULL, buffer, &n));
  EXPECT(KVL_INVALID, kvl_read_config("{\"config\": \"/no/such/file\"}", buffer, &n));
  n = sizeof buffer;
  EXPECT(KVL_OK, kvl_stats(engine, buffer, &n));
  CHECK(strlen(buffer) == n - 1 && buffer[0] == '{');
  n = sizeof buffer;
  EXPECT(KVL_OK, kvl_metrics(engine, buffer, &n));
  CHECK(strlen(buffer) == n - 1 && strstr(buffer, "\nkvlane_store_loads_total ") != NULL);
  EXPECT(KVL_INVALID, kvl_metrics(cache, buffer, &n));
  n = sizeof buffer;
  EXPECT(KVL_OK, kvl_notes(engine, buffer, &n));
  CHECK(strlen(buffer) == n - 1 && buffer[0] == '[');
  EXPECT(KVL_INVALID, kvl_open("{\"modle\": {}}", &engine));
  CHECK(strstr(kvl_error(), "modle") != NULL && strchr(kvl_error(), '\n') == NULL);
  CHECK(kvl_abi() == KVL_ABI && strcmp(kvl_version(), KVL_VERSION) == 0);
  CHECK(strcmp(kvl_status_name(KVL_FORKED), "KVL_FORKED") == 0 && strcmp(kvl_status_name((kvl_status)99), "unknown status") == 0);
}

/* The scheduler's side: a job is made, its blocks are stored by this process, and it is found then. */
static void manage(void) {
  char config[2200];
  kvl_manager m;
  kvl_job job, none;
  uint32_t groups[2] = {0, 0}, gone_groups[2];
  uint8_t hashes[2][KVL_HASH_BYTES] = {{1}, {2}}, states[2], chosen[2], failed[2] = {0, 1}, gone[2][KVL_HASH_BYTES];
  uint8_t dropped[KVL_KEY_BYTES], anchors[2][KVL_KEY_BYTES], direct = 9;
  kvl_event events[2];
  size_t n, evicted, stay = 9, length = sizeof config;
  kvl_blocks blocks = {groups, hashes[0], KVL_HASH_BYTES, 2};
  snprintf(config, sizeof config,
           "{\"ranks\": [{\"model\": {\"name\": \"m\", \"dtype\": \"bfloat16\", \"layers\": %d, \"kv_heads\": 1, \"head_size\": 64, \"block_tokens\": %d},"
           " \"device\": {\"driver\": \"%s\"}, \"store\": {\"cache_bytes\": 4194304, \"dirs\": [\"%s\"]}}]}",
           LAYERS, TOKENS, driver, dir);
  EXPECT(KVL_OK, kvl_open_manager(config, &m));
  EXPECT(KVL_OK, kvl_manager_lookup(m, &blocks, states));
  CHECK(states[0] == KVL_ABSENT && states[1] == KVL_ABSENT);
  EXPECT(KVL_NOT_FOUND, kvl_manager_load(m, &blocks, &none));
  EXPECT(KVL_OK, kvl_manager_store(m, &blocks, NULL, chosen, &job));
  CHECK(chosen[0] == 1 && chosen[1] == 1);
  EXPECT(KVL_OK, kvl_manager_lookup(m, &blocks, states));
  CHECK(states[0] == KVL_UNDER_WAY && states[1] == KVL_UNDER_WAY);
  EXPECT(KVL_OK, kvl_job_size(job, &n, &evicted));
  CHECK(n == 2 && evicted == 0);
  EXPECT(KVL_BUSY, kvl_manager_load(m, &blocks, &none));
  EXPECT(KVL_OK, kvl_job_direct(job, &direct));
  CHECK(direct == 0);
  EXPECT(KVL_NOT_FOUND, kvl_job_anchors(job, anchors[0], 2)); /* no tier "remote" */
  EXPECT(KVL_OK, kvl_job_loaded(job, 0.5, 1));
  EXPECT(KVL_INVALID, kvl_job_loaded(job, -1, 0));
  EXPECT(KVL_INVALID, kvl_job_end(job, failed, 3));
  EXPECT(KVL_OK, kvl_job_end(job, failed, 2));
  EXPECT(KVL_INVALID, kvl_job_end(job, failed, 2));
  EXPECT(KVL_OK, kvl_manager_lookup(m, &blocks, states));
  CHECK(states[0] == KVL_THERE && states[1] == KVL_ABSENT);
  EXPECT(KVL_OK, kvl_manager_computed(m, 1000, 0.5));
  EXPECT(KVL_OK, kvl_manager_worth(m, &blocks, states, 1000, 0, &n));
  CHECK(n == blocks.n);
  EXPECT(KVL_OK, kvl_manager_touch(m, &blocks));
  EXPECT(KVL_OK, kvl_manager_forget(m, &blocks));
  EXPECT(KVL_OK, kvl_manager_store(m, &blocks, &blocks, chosen, &job));
  EXPECT(KVL_OK, kvl_job_size(job, &n, &evicted));
  CHECK(n == 2 && evicted == 2);
  EXPECT(KVL_INVALID, kvl_job_evicted(job, gone_groups, gone[0], KVL_HASH_BYTES, 1));
  EXPECT(KVL_OK, kvl_job_evicted(job, gone_groups, gone[0], KVL_HASH_BYTES, 2));
  CHECK(memcmp(gone, hashes, sizeof gone) != 0 || gone_groups[0] == 0);
  EXPECT(KVL_OK, kvl_keys(engine, 0, gone[0], KVL_HASH_BYTES, 1, dropped));
  EXPECT(KVL_OK, kvl_set_anchors(engine, dropped, dropped, 1));
  EXPECT(KVL_INVALID, kvl_set_anchors(engine, dropped, NULL, 1));
  n = 2;
  EXPECT(KVL_OK, kvl_events(engine, events, &n));
  CHECK(n == 1 && events[0].change == KVL_EVENT_LOST);
  EXPECT(KVL_INVALID, kvl_events(engine, NULL, &n));
  EXPECT(KVL_INVALID, kvl_events(engine, events, NULL));
  EXPECT(KVL_OK, kvl_drop(engine, dropped, 1, &stay));
  CHECK(stay == 0);
  EXPECT(KVL_OK, kvl_job_end(job, NULL, 0));
  EXPECT(KVL_OK, kvl_manager_set_anchors(m, &blocks, &blocks));
  EXPECT(KVL_INVALID, kvl_manager_set_anchors(m, &blocks, NULL));
  EXPECT(KVL_OK, kvl_manager_reset(m));
  EXPECT(KVL_OK, kvl_manager_stats(m, config, &length));
  CHECK(strstr(config, "\"blocks\":0") != NULL);
  length = sizeof config;
  EXPECT(KVL_NO_SPACE, kvl_metrics(m, config, &length));
  CHECK(length > sizeof config);
  EXPECT(KVL_INVALID, kvl_manager_lookup(m, NULL, states));
  EXPECT(KVL_INVALID, kvl_manager_load(m, &blocks, NULL));
  EXPECT(KVL_OK, kvl_close_manager(m, PATIENCE));
  EXPECT(KVL_CLOSED, kvl_manager_reset(m));
}

/* The cache has 16 slots: those of a prompt of 12 blocks, and 4 more. */
enum { PROMPT = 12, PIECE = 4, SLOTS = 16, IMAGE_BYTES = 4096 + PLANES * PAGE_BYTES };

static void open_small(kvl_engine *e, kvl_cache *c) {
  char config[2000];
  uint64_t planes[PLANES];
  kvl_group_memory memory = {planes, PLANES, PAGES, PAGE_BYTES, 0};
  int i;
  snprintf(config, sizeof config,
           "{\"model\": {\"name\": \"m\", \"dtype\": \"bfloat16\", \"layers\": %d, \"kv_heads\": 1, \"head_size\": 64, \"block_tokens\": %d},"
           " \"device\": {\"driver\": \"host\"}, \"store\": {\"cache_bytes\": %d, \"dirs\": [\"%s-order\"]}}",
           LAYERS, TOKENS, SLOTS * IMAGE_BYTES, dir);
  EXPECT(KVL_OK, kvl_open(config, e));
  for (i = 0; i < PLANES; i++) planes[i] = (uint64_t)(uintptr_t)kv[i];
  EXPECT(KVL_OK, kvl_register_cache(*e, &memory, 1, c));
}

static void close_small(kvl_engine e, kvl_cache c) {
  EXPECT(KVL_OK, kvl_close_cache(c, PATIENCE));
  EXPECT(KVL_OK, kvl_close(e, PATIENCE));
}

/* Dumps or loads a prompt in pieces, of which each names the block before it. Then stores another prompt, and checks that of the first one
 * the beginning alone is in memory. */
static void pieces(int load, uint8_t prompt[PROMPT][KVL_KEY_BYTES], uint8_t other[PROMPT][KVL_KEY_BYTES]) {
  uint32_t pages[PROMPT];
  uint8_t there[PROMPT];
  kvl_engine e;
  kvl_cache c;
  kvl_task task;
  int i;
  open_small(&e, &c);
  for (i = 0; i < PROMPT; i++) pages[i] = (uint32_t)i;
  for (i = 0; i < PROMPT; i += PIECE) {
    const uint8_t *before = i > 0 ? prompt[i - 1] : NULL;
    if (load)
      EXPECT(KVL_OK, kvl_load_blocks(e, 0, c, prompt[i], pages + i, PIECE, before, 0, NULL, &task));
    else
      EXPECT(KVL_OK, kvl_dump_blocks(e, c, prompt[i], pages + i, PIECE, before, 0, NULL, &task));
    EXPECT(KVL_OK, kvl_wait(task, KVL_DONE, PATIENCE));
    EXPECT(KVL_OK, kvl_free(task));
  }
  EXPECT(KVL_OK, kvl_dump_blocks(e, c, other[0], pages, PROMPT, NULL, 0, NULL, &task));
  EXPECT(KVL_OK, kvl_wait(task, KVL_DONE, PATIENCE));
  EXPECT(KVL_OK, kvl_free(task));
  EXPECT(KVL_OK, kvl_lookup(e, prompt[0], PROMPT, there, PATIENCE));
  for (i = 0; i < PROMPT; i++) CHECK(there[i] == (i < SLOTS - PROMPT ? KVL_IN_MEMORY : KVL_IN_FILES));
  close_small(e, c);
}

/* The end of a prompt is evicted first, which is known by the blocks before. */
static void order(void) {
  uint8_t hashes[3 * PROMPT][KVL_HASH_BYTES], of[3 * PROMPT][KVL_KEY_BYTES];
  int64_t tokens[PROMPT * TOKENS];
  kvl_engine e;
  kvl_cache c;
  int p, i;
  open_small(&e, &c);
  for (p = 0; p < 3; p++) {
    for (i = 0; i < PROMPT * TOKENS; i++) tokens[i] = p + i;
    EXPECT(KVL_OK, kvl_hash_tokens(NULL, tokens, PROMPT * TOKENS, TOKENS, hashes[p * PROMPT]));
  }
  EXPECT(KVL_OK, kvl_keys(e, 0, hashes[0], KVL_HASH_BYTES, 3 * PROMPT, of[0]));
  close_small(e, c);
  pieces(0, of, of + PROMPT);
  pieces(1, of, of + 2 * PROMPT); /* another engine, with nothing in memory */
}

/* One of several threads at once: an error of one is not seen by the others. */
static void *thread(void *arg) {
  char word[32];
  size_t found;
  kvl_lease lease;
  uint32_t page = PAGES / 2;
  kvl_task task;
  int i;
  CHECK(kvl_error()[0] == 0);
  for (i = 0; i < 50; i++) {
    snprintf(word, sizeof word, "{\"w%d_%d\": 1}", (int)(intptr_t)arg, i);
    kvl_engine none;
    EXPECT(KVL_INVALID, kvl_open(word, &none));
    word[strlen(word) - 5] = 0;
    CHECK(strstr(kvl_error(), word + 2) != NULL);
    EXPECT(KVL_OK, kvl_lease_blocks(engine, keys[0], BLOCKS, 0, PATIENCE, &lease, &found));
    EXPECT(KVL_OK, kvl_load_blocks(engine, lease, cache, keys[0], &page, found > 0, NULL, 0, NULL, &task));
    EXPECT(KVL_OK, kvl_wait(task, KVL_DONE, PATIENCE));
    EXPECT(KVL_OK, kvl_free(task));
    EXPECT(KVL_OK, kvl_release(lease));
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[4];
  size_t i;
  for (i = 0; i < 4; i++) CHECK(pthread_create(&all[i], NULL, thread, (void *)i) == 0);
  for (i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

/* A child of fork() is told so by every call, at once; and the parent goes on. */
static void fork_off(void) {
  size_t n = 0;
  int status = -1;
  kvl_engine e;
  pid_t child = fork();
  if (child == 0) {
    failures = 0;
    alarm(20); /* a hang ends the child by a signal */
    EXPECT(KVL_FORKED, kvl_open("{}", &e));
    EXPECT(KVL_FORKED, kvl_close(engine, 0));
    EXPECT(KVL_FORKED, kvl_register_cache(engine, NULL, 0, &cache));
    EXPECT(KVL_FORKED, kvl_close_cache(cache, KVL_FOREVER));
    EXPECT(KVL_FORKED, kvl_hash_tokens(NULL, NULL, 0, 1, NULL));
    EXPECT(KVL_FORKED, kvl_keys(engine, 0, NULL, 0, 0, NULL));
    EXPECT(KVL_FORKED, kvl_lookup(engine, NULL, 0, NULL, 0));
    EXPECT(KVL_FORKED, kvl_lease_blocks(engine, NULL, 0, 0, 0, &e, &n));
    EXPECT(KVL_FORKED, kvl_release(1));
    EXPECT(KVL_FORKED, kvl_load_blocks(engine, 0, cache, NULL, NULL, 0, NULL, 0, NULL, &e));
    EXPECT(KVL_FORKED, kvl_dump_blocks(engine, cache, NULL, NULL, 0, NULL, 0, NULL, &e));
    EXPECT(KVL_FORKED, kvl_submit_layer(1, 0, NULL));
    EXPECT(KVL_FORKED, kvl_prefetch(engine, NULL, 0, &e));
    EXPECT(KVL_FORKED, kvl_remove(engine, NULL, 0, 0, &n));
    EXPECT(KVL_FORKED, kvl_pin(engine, NULL, 0, 0));
    EXPECT(KVL_FORKED, kvl_unpin(engine, NULL, 0, 0));
    EXPECT(KVL_FORKED, kvl_why(engine, NULL, 0, 0, NULL, &n));
    EXPECT(KVL_FORKED, kvl_wait(1, KVL_DONE, KVL_FOREVER));
    EXPECT(KVL_FORKED, kvl_results(1, NULL, 0));
    EXPECT(KVL_FORKED, kvl_left_out(1, NULL, &n));
    EXPECT(KVL_FORKED, kvl_cancel(1));
    EXPECT(KVL_FORKED, kvl_free(1));
    EXPECT(KVL_FORKED, kvl_stream_wait(engine, 0, 1, KVL_DONE));
    EXPECT(KVL_FORKED, kvl_stats(engine, NULL, &n));
    EXPECT(KVL_FORKED, kvl_notes(engine, NULL, &n));
    EXPECT(KVL_FORKED, kvl_report_slowdown(engine, 1));
    CHECK(strstr(kvl_error(), "fork") != NULL);
    CHECK(kvl_abi() == KVL_ABI && kvl_version()[0] != 0);
    fflush(stdout);
    _exit(failures != 0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT(KVL_OK, kvl_lookup(engine, keys[0], 0, NULL, 0));
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Removal, pins and explanations of the dumped blocks. */
static void tidy(void) {
  char why[65536];
  size_t n = 0, length = sizeof why;
  uint8_t there[2];
  EXPECT(KVL_OK, kvl_pin(engine, keys[0], 1, PATIENCE));
  EXPECT(KVL_BUSY, kvl_remove(engine, keys[0], 2, PATIENCE, &n));
  CHECK(n == 1 && strstr(kvl_error(), "pinned") != NULL);
  EXPECT(KVL_OK, kvl_why(engine, keys[0], 2, PATIENCE, why, &length));
  CHECK(strstr(why, "is stored in tier file") != NULL && strstr(why, "\"cause\":\"request\"") != NULL);
  EXPECT(KVL_NOT_FOUND, kvl_pin(engine, keys[1], 1, PATIENCE));
  EXPECT(KVL_OK, kvl_unpin(engine, keys[0], 2, PATIENCE));
  EXPECT(KVL_OK, kvl_remove(engine, keys[0], 2, PATIENCE, &n));
  EXPECT(KVL_OK, kvl_lookup(engine, keys[0], 2, there, PATIENCE));
  CHECK(n == 1 && there[0] == 0 && there[1] == 0);
  length = 10;
  EXPECT(KVL_NO_SPACE, kvl_why(engine, keys[0], 1, PATIENCE, why, &length));
  CHECK(length > 10);
  EXPECT(KVL_INVALID, kvl_remove(engine, keys[0], 1, 0, NULL));
  EXPECT(KVL_INVALID, kvl_remove(engine, NULL, 1, 0, &n));
  EXPECT(KVL_INVALID, kvl_pin(engine, NULL, 1, 0));
  EXPECT(KVL_INVALID, kvl_unpin(engine, NULL, 1, 0));
  EXPECT(KVL_INVALID, kvl_why(engine, NULL, 1, 0, why, &length));
  EXPECT(KVL_INVALID, kvl_why(engine, keys[0], 1, 0, why, NULL));
}

/* What a call costs beside what it does: the shortest of many. */
static void price(void) {
  double best = 1, t;
  int i;
  for (i = 0; i < 20000; i++) {
    t = seconds();
    (void)kvl_lookup(engine, keys[0], 0, NULL, 0);
    if ((t = seconds() - t) < best) best = t;
  }
  printf("a call that does nothing, with the device %s: %.2f us\n", driver, best * 1e6);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  driver = argv[1];
  dir = argv[2];
  host = strcmp(driver, "host") == 0;
  setvbuf(stdout, NULL, _IONBF, 0); /* nothing for a child to print again */
  CHECK(kvl_error()[0] == 0);
  carry();
  order();
  nothing();
  words();
  start();
  manage();
  threads();
  fork_off();
  price();
  tidy();
  stop();
  puts(failures == 0 ? "ok" : "failed");
  return failures != 0;
}
