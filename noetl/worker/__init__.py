"""Shell of the data plane; the only caller of pipeline and tools."""
