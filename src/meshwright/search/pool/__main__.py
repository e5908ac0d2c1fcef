"""`python -m meshwright.search.pool`: a worker process of the pool; `process` starts it."""

from meshwright.search.pool.worker import serve

if __name__ == "__main__":
    serve()
