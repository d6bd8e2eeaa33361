"""The orchestrator: accepts requests and drives one actor per active execution."""
