/** The ways of one gateway to its nodes, which notice that it sends. */
export type SendProxies = {
  /** Of the proxy before the node at this URL. */
  urlOf(node: string): string
  /**
   * Calls `work` at the next send of a transaction, which the node gets so much later, ms. Resolves
   * then with true, or with false when there is no send for long.
   */
  atSend(heldMs: number, work: () => void): Promise<boolean>
  stop(): void
}

/** Longest wait for a send, ms. */
const sendMaxMs = 5_000

export function startSendProxies(nodes: readonly string[]): SendProxies {
  let onSend: (() => Promise<void>) | undefined
  const servers = nodes.map((node) => {
    const server = Bun.serve({
      hostname: '127.0.0.1',
      port: 0,
      idleTimeout: 120,
      async fetch(request) {
        const body = await request.text()
        if (body.includes('eth_sendRawTransaction')) await onSend?.()
        const answer = await fetch(node, { method: 'POST', headers: request.headers, body })
        return new Response(await answer.text(), {
          status: answer.status,
          headers: { 'content-type': 'application/json' },
        })
      },
    })
    return { node, server }
  })
  return {
    urlOf(node) {
      const found = servers.find((each) => each.node === node)
      if (found === undefined) throw new Error(`no proxy before ${node}`)
      return `http://127.0.0.1:${found.server.port}`
    },
    async atSend(heldMs, work) {
      const { promise, resolve } = Promise.withResolvers<boolean>()
      const timer = setTimeout(() => {
        onSend = undefined
        resolve(false)
      }, sendMaxMs)
      onSend = async () => {
        onSend = undefined
        clearTimeout(timer)
        work()
        resolve(true)
        await Bun.sleep(heldMs)
      }
      return promise
    },
    stop() {
      for (const { server } of servers) server.stop(true)
    },
  }
}
