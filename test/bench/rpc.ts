export type CountingRpc = {
  url: string
  /** Calls by method since the last reset. */
  counts: Map<string, number>
  reset(): void
  stop(): Promise<void>
}

/** Forwards JSON-RPC over HTTP to a node and counts the calls, each member of a batch as one. */
export function startCountingRpc(target: string): CountingRpc {
  const counts = new Map<string, number>()
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    async fetch(request) {
      const body = await request.text()
      for (const { method } of [JSON.parse(body)].flat())
        counts.set(method, (counts.get(method) ?? 0) + 1)
      const answer = await fetch(target, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
      })
      return new Response(await answer.text(), {
        status: answer.status,
        headers: { 'content-type': 'application/json' },
      })
    },
  })
  return {
    url: `http://127.0.0.1:${server.port}`,
    counts,
    reset: () => counts.clear(),
    stop: () => server.stop(true),
  }
}
