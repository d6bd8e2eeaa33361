"""The load of servers over days, in the database of the event log or in memory."""
