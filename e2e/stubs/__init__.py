"""Scripts that replace external services, such as a model hub. They run in pods of the runtime's image."""
