"""Until kvlane has its Manager: one in Python, for these tests."""
import sys, types, collections
from kvlane import errors

class Job:
    def __init__(self, m, keys, evicted, store): self.m, self.keys, self.evicted, self.store, self.over = m, keys, evicted, store, False
    def end(self, failed=()):
        if self.over: return
        self.over = True
        self.m._end(self, set(failed))

class Manager:
    def __init__(self, config):
        from kvlane import Store
        self.ranks = config["ranks"]; self.blocks = config["blocks"]
        self.pool = collections.OrderedDict()  # name -> ready
        self.pins = collections.Counter()
        self.counts = collections.Counter()
        self.bad = set()
        self.files = []
        for c in self.ranks:
            if c["store"].get("dirs"):
                big = max(g["geometry"]["layers"] * g["geometry"]["head_size"] for g in c["groups"])
                for d in c["store"]["dirs"]: __import__("os").makedirs(d, exist_ok=True)
                self.files.append(Store({**c, "device": {"driver": "host"}, "store": {"dirs": c["store"]["dirs"], "read_only": True, "cache_bytes": 16 * (big + 8192)}}))
    def _infiles(self, keys):
        out = [bool(self.files)] * len(keys)
        for s in self.files:
            ks = b"".join(s.keys(k[:-4], int.from_bytes(k[-4:], "big"), len(k) - 4).raw for k in keys)
            from kvlane import Keys
            for i, t in enumerate(s.lookup(Keys(ks))): out[i] = out[i] and bool(t) and keys[i] not in self.bad
        return out
    def lookup(self, keys):
        f = self._infiles(keys); self.counts["looked_up"] += len(keys)
        return bytes(2 if self.pool.get(k) else 1 if k in self.pool else 2 if f[i] else 0 for i, k in enumerate(keys))
    def _room(self, n, keep):
        out = []
        for k in list(self.pool):
            if len(self.pool) + n <= self.blocks: break
            if self.pool[k] and not self.pins[k] and k not in keep: del self.pool[k]; out.append(k)
        if len(self.pool) + n > self.blocks: raise errors.Busy("no room")
        self.counts["evicted"] += len(out)
        return out
    def prepare_load(self, keys):
        st = self.lookup(keys)
        if any(s != 2 for s in st): raise errors.NotFound("not there")
        new = [k for k in keys if k not in self.pool]
        ev = self._room(len(new), set(keys))
        for k in keys:
            self.pool.setdefault(k, True); self.pool.move_to_end(k); self.pins[k] += 1
        self.counts["load_jobs"] += 1; self.counts["loaded"] += len(keys)
        return Job(self, list(keys), ev, False)
    def prepare_store(self, keys):
        new = [k for k in keys if k not in self.pool]
        try: ev = self._room(len(new), set(keys))
        except errors.Busy:
            self.counts["no_room"] += 1
            return None
        for k in new: self.pool[k] = False
        self.counts["store_jobs"] += 1
        return Job(self, new, ev, True)
    def _end(self, job, failed):
        self.counts["failed"] += len(failed)
        for k in job.keys:
            if not job.store:
                self.pins[k] -= 1
            if k in failed: self.forget([k])
            elif job.store: self.pool[k] = True; self.bad.discard(k); self.counts["stored"] += 1
        self.counts["ended"] += 1
    def forget(self, keys):
        for k in keys: self.pool.pop(k, None); self.bad.add(k)
    def stats(self): return {**self.counts, "there": sum(self.pool.values()), "filling": sum(not v for v in self.pool.values()), "pinned": sum(self.pins.values())}
    def close(self):
        for s in self.files: s.close()

m = types.ModuleType("kvlane.manager"); m.Manager, m.Job = Manager, Job
sys.modules["kvlane.manager"] = m
