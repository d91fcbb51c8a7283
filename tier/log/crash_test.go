package log_test

const writerDir = "KVLANE_TEST_LOG_WRITER_DIR"

func writeUntilKilled(string) {}
