//go:build cgo

/*
 * The functions of kvlane.h. Each checks that this process loaded the library, calls its Go function (kvlGo...), and keeps the
 * error text for the thread. Go functions return a status, and set their last argument to the error text, allocated by malloc, or NULL.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "_cgo_export.h"

/* The process that loaded the library. Children of fork() do not have the threads of Go's runtime. */
static pid_t loader;

/* Each thread's error text. A pthread key needs no static TLS, which may be used up when the library is loaded by dlopen. */
static pthread_key_t words;
static int have_words;

__attribute__((constructor)) static void loaded(void) {
  loader = getpid();
  have_words = pthread_key_create(&words, free) == 0;
}

static int forked(void) { return getpid() != loader; }

/* The program's limit on open files. Go's runtime raises the soft limit to the hard limit when it starts, and child processes would
 * inherit that. started() restores the limit. The priority makes this constructor run before the one that starts Go's runtime. */
static struct rlimit descriptors;
static int have_descriptors;

__attribute__((constructor(101))) static void before_go(void) {
  have_descriptors = getrlimit(RLIMIT_NOFILE, &descriptors) == 0;
}

/* The file descriptors of the process's file locks, plus one, or 0; NULL before started(). A child of fork() inherits them. It closes
 * them, because it would otherwise hold the locks after its parent has died. */
static int32_t *locks;
static size_t n_locks;

static void close_locks(void) {
  size_t i;
  for (i = 0; i < n_locks; i++) {
    int32_t fd = __atomic_load_n(&locks[i], __ATOMIC_RELAXED);
    if (fd > 0) close(fd - 1);
  }
}

/* Go calls this once, after its runtime has started. Go raises the soft limit to the hard limit, or to one less. */
void started(int32_t *table, size_t n) {
  struct rlimit now;
  if (have_descriptors && getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_max == descriptors.rlim_max &&
      now.rlim_cur >= now.rlim_max - 1)
    setrlimit(RLIMIT_NOFILE, &descriptors);
  locks = table;
  n_locks = n;
  pthread_atfork(NULL, NULL, close_locks);
}

static kvl_status answer(int32_t status, char *why) {
  if (why != NULL) {
    char *before = have_words ? pthread_getspecific(words) : NULL;
    if (have_words && pthread_setspecific(words, why) == 0)
      free(before);
    else
      free(why);
  }
  return (kvl_status)status;
}

#define CALL(function, ...)                          \
  do {                                               \
    char *why = NULL;                                \
    int32_t status;                                  \
    if (forked()) return KVL_FORKED;                 \
    status = function(__VA_ARGS__, &why);            \
    return answer(status, why);                      \
  } while (0)

int kvl_abi(void) { return KVL_ABI; }

const char *kvl_version(void) { return KVL_VERSION; }

const char *kvl_error(void) {
  const char *why;
  if (forked()) return "this process is a child of fork(), and kvlane's threads are in its parent: load the library in the child alone";
  why = have_words ? pthread_getspecific(words) : NULL;
  return why != NULL ? why : "";
}

#define NAME(status) \
  case status: return #status

const char *kvl_status_name(kvl_status status) {
  switch (status) {
    NAME(KVL_OK);
    NAME(KVL_PENDING);
    NAME(KVL_INVALID);
    NAME(KVL_NOT_FOUND);
    NAME(KVL_EXISTS);
    NAME(KVL_NOT_SUPPORTED);
    NAME(KVL_BUSY);
    NAME(KVL_NO_MEMORY);
    NAME(KVL_NO_SPACE);
    NAME(KVL_READ_ONLY);
    NAME(KVL_CORRUPT);
    NAME(KVL_MISMATCH);
    NAME(KVL_CANCELED);
    NAME(KVL_EXPIRED);
    NAME(KVL_CLOSED);
    NAME(KVL_BROKEN);
    NAME(KVL_FORKED);
    NAME(KVL_FAILED);
  }
  return "unknown status";
}

kvl_status kvl_open(const char *config, kvl_engine *engine) { CALL(kvlGoOpen, (char *)config, engine); }

kvl_status kvl_read_config(const char *config, char *buffer, size_t *bytes) {
  CALL(kvlGoReadConfig, (char *)config, buffer, bytes);
}

kvl_status kvl_close(kvl_engine engine, int64_t timeout_ms) { CALL(kvlGoClose, engine, timeout_ms); }

kvl_status kvl_register_cache(kvl_engine engine, const kvl_group_memory *groups, size_t n_groups, kvl_cache *cache) {
  CALL(kvlGoRegisterCache, engine, (kvl_group_memory *)groups, n_groups, cache);
}

kvl_status kvl_close_cache(kvl_cache cache, int64_t timeout_ms) { CALL(kvlGoCloseCache, cache, timeout_ms); }

kvl_status kvl_hash_tokens(const uint8_t *parent, const int64_t *tokens, size_t n_tokens, size_t block_tokens, uint8_t *hashes) {
  CALL(kvlGoHashTokens, (uint8_t *)parent, (int64_t *)tokens, n_tokens, block_tokens, hashes);
}

kvl_status kvl_keys(kvl_engine engine, uint32_t group, const uint8_t *hashes, size_t hash_bytes, size_t n, uint8_t *keys) {
  CALL(kvlGoKeys, engine, group, (uint8_t *)hashes, hash_bytes, n, keys);
}

kvl_status kvl_lookup(kvl_engine engine, const uint8_t *keys, size_t n, uint8_t *there, int64_t timeout_ms) {
  CALL(kvlGoLookup, engine, (uint8_t *)keys, n, there, timeout_ms);
}

kvl_status kvl_lease_blocks(kvl_engine engine, const uint8_t *keys, size_t n, int64_t ttl_ms, int64_t timeout_ms, kvl_lease *lease,
                            size_t *found) {
  CALL(kvlGoLease, engine, (uint8_t *)keys, n, ttl_ms, timeout_ms, lease, found);
}

kvl_status kvl_worth(kvl_lease lease, int64_t tokens, int64_t rest, size_t *worth) { CALL(kvlGoWorth, lease, tokens, rest, worth); }

kvl_status kvl_report_computed(kvl_engine engine, int64_t tokens, double seconds) { CALL(kvlGoReportComputed, engine, tokens, seconds); }

kvl_status kvl_report_delay(kvl_engine engine, double seconds) { CALL(kvlGoReportDelay, engine, seconds); }

kvl_status kvl_release(kvl_lease lease) { CALL(kvlGoRelease, lease); }

kvl_status kvl_load_blocks(kvl_engine engine, kvl_lease lease, kvl_cache cache, const uint8_t *keys, const uint32_t *pages, size_t n,
                           const uint8_t *before, uint32_t flags, const kvl_after *after, kvl_task *task) {
  CALL(kvlGoLoad, engine, lease, cache, (uint8_t *)keys, (uint32_t *)pages, n, (uint8_t *)before, flags, (kvl_after *)after, task);
}

kvl_status kvl_dump_blocks(kvl_engine engine, kvl_cache cache, const uint8_t *keys, const uint32_t *pages, size_t n,
                           const uint8_t *before, uint32_t flags, const kvl_after *after, kvl_task *task) {
  CALL(kvlGoDump, engine, cache, (uint8_t *)keys, (uint32_t *)pages, n, (uint8_t *)before, flags, (kvl_after *)after, task);
}

kvl_status kvl_submit_layer(kvl_task task, uint32_t layer, const kvl_after *after) {
  CALL(kvlGoSubmitLayer, task, layer, (kvl_after *)after);
}

kvl_status kvl_prefetch(kvl_engine engine, const uint8_t *keys, size_t n, kvl_task *task) {
  CALL(kvlGoPrefetch, engine, (uint8_t *)keys, n, task);
}

kvl_status kvl_wait(kvl_task task, int32_t what, int64_t timeout_ms) { CALL(kvlGoWait, task, what, timeout_ms); }

kvl_status kvl_results(kvl_task task, kvl_result *results, size_t n) { CALL(kvlGoResults, task, results, n); }

kvl_status kvl_left_out(kvl_task task, char *buffer, size_t *bytes) { CALL(kvlGoLeftOut, task, buffer, bytes); }

kvl_status kvl_load_seconds(kvl_task task, double *seconds) { CALL(kvlGoLoadSeconds, task, seconds); }

kvl_status kvl_cancel(kvl_task task) { CALL(kvlGoCancel, task); }

kvl_status kvl_free(kvl_task task) { CALL(kvlGoFree, task); }

kvl_status kvl_stream_wait(kvl_engine engine, uint64_t stream, kvl_task task, int32_t what) {
  CALL(kvlGoStreamWait, engine, stream, task, what);
}

kvl_status kvl_open_allocator(const char *driver, int32_t device) { CALL(kvlGoOpenAllocator, (char *)driver, device); }

void *kvl_torch_alloc(ssize_t size, int device, void *stream) {
  uint64_t at = 0;
  char *why = NULL;
  (void)stream;
  if (forked()) return NULL;
  answer(kvlGoAllocate(device, size, &at, &why), why);
  return (void *)(uintptr_t)at;
}

void kvl_torch_free(void *ptr, ssize_t size, int device, void *stream) {
  char *why = NULL;
  (void)size;
  if (forked()) return;
  answer(kvlGoDeallocate(device, (uint64_t)(uintptr_t)ptr, (uint64_t)(uintptr_t)stream, &why), why);
}

kvl_status kvl_allocator_stats(int32_t device, char *buffer, size_t *bytes) {
  CALL(kvlGoAllocatorStats, device, buffer, bytes);
}

kvl_status kvl_stats(kvl_engine engine, char *buffer, size_t *bytes) { CALL(kvlGoStats, engine, buffer, bytes); }

kvl_status kvl_metrics(uint64_t of, char *buffer, size_t *bytes) { CALL(kvlGoMetrics, of, buffer, bytes); }

kvl_status kvl_notes(kvl_engine engine, char *buffer, size_t *bytes) { CALL(kvlGoNotes, engine, buffer, bytes); }

kvl_status kvl_register_memory(kvl_engine engine, uint64_t address, uint64_t bytes, uint32_t kind, kvl_memory *memory) {
  CALL(kvlGoRegisterMemory, engine, address, bytes, kind, memory);
}

kvl_status kvl_unregister_memory(kvl_memory memory, int64_t timeout_ms) { CALL(kvlGoUnregisterMemory, memory, timeout_ms); }

kvl_status kvl_open_stream(kvl_engine engine, kvl_stream *stream) { CALL(kvlGoOpenStream, engine, stream); }

kvl_status kvl_close_stream(kvl_stream stream, int64_t timeout_ms) { CALL(kvlGoCloseStream, stream, timeout_ms); }

kvl_status kvl_copy(kvl_stream stream, kvl_memory to, const uint64_t *to_at, kvl_memory from, const uint64_t *from_at,
                    const uint64_t *bytes, size_t n, const kvl_after *after, int64_t timeout_ms, kvl_task *task) {
  CALL(kvlGoCopy, stream, to, (uint64_t *)to_at, from, (uint64_t *)from_at, (uint64_t *)bytes, n, (kvl_after *)after, timeout_ms,
       task);
}

kvl_status kvl_report_slowdown(kvl_engine engine, double percent) { CALL(kvlGoReportSlowdown, engine, percent); }

kvl_status kvl_set_anchors(kvl_engine engine, const uint8_t *keys, const uint8_t *anchors, size_t n) {
  CALL(kvlGoSetAnchors, engine, (uint8_t *)keys, (uint8_t *)anchors, n);
}

kvl_status kvl_drop(kvl_engine engine, const uint8_t *keys, size_t n, size_t *stay) { CALL(kvlGoDrop, engine, (uint8_t *)keys, n, stay); }

kvl_status kvl_remove(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms, size_t *removed) {
  CALL(kvlGoRemove, engine, (uint8_t *)keys, n, timeout_ms, removed);
}

kvl_status kvl_pin(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms) {
  CALL(kvlGoPin, engine, (uint8_t *)keys, n, 0, timeout_ms);
}

kvl_status kvl_unpin(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms) {
  CALL(kvlGoPin, engine, (uint8_t *)keys, n, 1, timeout_ms);
}

kvl_status kvl_why(kvl_engine engine, const uint8_t *keys, size_t n, int64_t timeout_ms, char *buffer, size_t *bytes) {
  CALL(kvlGoWhy, engine, (uint8_t *)keys, n, timeout_ms, buffer, bytes);
}

kvl_status kvl_events(kvl_engine engine, kvl_event *events, size_t *n) { CALL(kvlGoEvents, engine, events, n); }

kvl_status kvl_open_manager(const char *config, kvl_manager *manager) { CALL(kvlGoOpenManager, (char *)config, manager); }

kvl_status kvl_close_manager(kvl_manager manager, int64_t timeout_ms) { CALL(kvlGoCloseManager, manager, timeout_ms); }

kvl_status kvl_manager_lookup(kvl_manager manager, const kvl_blocks *blocks, uint8_t *states) {
  CALL(kvlGoManagerLookup, manager, (kvl_blocks *)blocks, states);
}

kvl_status kvl_manager_worth(kvl_manager manager, const kvl_blocks *blocks, const uint8_t *states, int64_t tokens, int64_t rest,
                             size_t *worth) {
  CALL(kvlGoManagerWorth, manager, (kvl_blocks *)blocks, (uint8_t *)states, tokens, rest, worth);
}

kvl_status kvl_manager_computed(kvl_manager manager, int64_t tokens, double seconds) {
  CALL(kvlGoManagerComputed, manager, tokens, seconds);
}

kvl_status kvl_manager_load(kvl_manager manager, const kvl_blocks *blocks, kvl_job *job) {
  CALL(kvlGoManagerLoad, manager, (kvl_blocks *)blocks, job);
}

kvl_status kvl_manager_store(kvl_manager manager, const kvl_blocks *blocks, const kvl_blocks *before, uint8_t *chosen,
                             kvl_job *job) {
  CALL(kvlGoManagerStore, manager, (kvl_blocks *)blocks, (kvl_blocks *)before, chosen, job);
}

kvl_status kvl_manager_forget(kvl_manager manager, const kvl_blocks *blocks) {
  CALL(kvlGoManagerForget, manager, (kvl_blocks *)blocks);
}

kvl_status kvl_manager_set_anchors(kvl_manager manager, const kvl_blocks *blocks, const kvl_blocks *anchors) {
  CALL(kvlGoManagerSetAnchors, manager, (kvl_blocks *)blocks, (kvl_blocks *)anchors);
}

kvl_status kvl_manager_touch(kvl_manager manager, const kvl_blocks *blocks) {
  CALL(kvlGoManagerTouch, manager, (kvl_blocks *)blocks);
}

kvl_status kvl_manager_reset(kvl_manager manager) { CALL(kvlGoManagerReset, manager); }

kvl_status kvl_manager_stats(kvl_manager manager, char *buffer, size_t *bytes) { CALL(kvlGoManagerStats, manager, buffer, bytes); }

kvl_status kvl_job_loaded(kvl_job job, double seconds, double wait) { CALL(kvlGoJobLoaded, job, seconds, wait); }

kvl_status kvl_job_size(kvl_job job, size_t *blocks, size_t *evicted) { CALL(kvlGoJobSize, job, blocks, evicted); }

kvl_status kvl_job_anchors(kvl_job job, uint8_t *anchors, size_t n) { CALL(kvlGoJobAnchors, job, anchors, n); }

kvl_status kvl_job_direct(kvl_job job, uint8_t *direct) { CALL(kvlGoJobDirect, job, direct); }

kvl_status kvl_job_evicted(kvl_job job, uint32_t *groups, uint8_t *hashes, size_t hash_bytes, size_t n) {
  CALL(kvlGoJobEvicted, job, groups, hashes, hash_bytes, n);
}

kvl_status kvl_job_end(kvl_job job, const uint8_t *failed, size_t n) { CALL(kvlGoJobEnd, job, (uint8_t *)failed, n); }
