"""Shell of the control plane; the only caller of engine."""
