"""Links between workers and servers, over HTTP and NATS, and the API connection of clients."""
