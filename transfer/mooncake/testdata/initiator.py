"""Writes to a segment with Mooncake's engine and reads back. Arguments: NAME METADATA SEGMENT ADDRESS BYTES VERSION."""

import os
import sys

from mooncake.engine import TransferEngine

name, metadata, segment = sys.argv[1:4]
address, size, version = (int(a) for a in sys.argv[4:7])
engine = TransferEngine()
if engine.initialize(name, metadata, "tcp", "") != 0:
    sys.exit("initialize failed")
data = os.urandom(size // 2) + b"kvlane".ljust(size - size // 2, b"!")
out, back = engine.allocate_managed_buffer(size), engine.allocate_managed_buffer(size)
if engine.write_bytes_to_buffer(out, data, size) != 0:
    sys.exit("local memory cannot be written")
if engine.transfer_sync_write(segment, out, address, size) != 0:
    sys.exit("write failed")
if engine.transfer_sync_read(segment, back, address, size) != 0:
    sys.exit("read failed")
if engine.read_bytes_from_buffer(back, size) != data:
    sys.exit("other bytes were read than written")
beside = engine.transfer_sync_write(segment, out, address - 4096, 4096)
if version > 1 and beside == 0:  # version 1 has no word for it
    sys.exit("a write beside the registered memory went well")
print("alive:", engine.send_probe(segment))
print("kept:", data[:16].hex())
sys.stdout.flush()
os._exit(0)
