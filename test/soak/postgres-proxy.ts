import net, { type AddressInfo, type Socket } from 'node:net'

/**
 * What happens to a commit whose connection is cut: the server does not get it, its answer is lost, or the
 * server gets it so much later, ms, perhaps after its repeat.
 */
export type CommitCut = 'request' | 'answer' | number

/** What one gateway connects to in place of PostgreSQL. */
export type PostgresProxy = {
  port: number
  /** Ports that PostgreSQL sees as its clients'. */
  clientPorts(): readonly number[]
  /** Ends all connections, and accepts none for so long. */
  cut(ms: number): Promise<void>
  /** The same until it is disposed. */
  refuse(): AsyncDisposable
  /** For so long, cuts each connection at the commit that passes. */
  cutCommits(ms: number, cut: CommitCut): Promise<void>
  /** Passes nothing on for so long, without an end of any connection. What waits is passed later. */
  silence(ms: number): Promise<void>
  /**
   * Passes nothing on of the connections of now, as a network does that drops their packets. Others
   * pass. The result says how many of them their client has not ended.
   */
  drop(): () => number
  stop(): void
}

/** What one gateway connects to in place of several servers. */
export type PostgresProxies = Pick<
  PostgresProxy,
  'clientPorts' | 'cut' | 'cutCommits' | 'silence' | 'stop'
> & {
  /** One for each server, in their order. */
  ports: readonly number[]
}

export async function startPostgresProxies(servers: readonly number[]): Promise<PostgresProxies> {
  const proxies = await Promise.all(servers.map(startPostgresProxy))
  return {
    ports: proxies.map(({ port }) => port),
    clientPorts: () => proxies.flatMap((proxy) => proxy.clientPorts()),
    cut: async (ms) => void (await Promise.all(proxies.map((proxy) => proxy.cut(ms)))),
    cutCommits: async (ms, cut) =>
      void (await Promise.all(proxies.map((proxy) => proxy.cutCommits(ms, cut)))),
    silence: async (ms) => void (await Promise.all(proxies.map((proxy) => proxy.silence(ms)))),
    stop() {
      for (const proxy of proxies) proxy.stop()
    },
  }
}

type Pair = { client: Socket; server: Socket }

export function startPostgresProxy(port: number): Promise<PostgresProxy> {
  const pairs = new Set<Pair>()
  let isCut = false
  let commitCut: CommitCut | undefined
  let silence: Promise<void> | undefined
  const accept = async (client: Socket) => {
    client.on('error', () => undefined)
    if (isCut) return void client.destroy()
    client.pause()
    while (silence !== undefined) await silence
    if (isCut) return void client.destroy()
    const server = net.connect({ port, host: '127.0.0.1', noDelay: true })
    client.setNoDelay(true)
    const pair = { client, server }
    pairs.add(pair)
    join(pair, {
      closed: () => void pairs.delete(pair),
      isTaken(chunk) {
        if (commitCut === undefined || !isCommit(chunk)) return false
        cutAt(pair, chunk, commitCut)
        return true
      },
    })
    if (silence === undefined) client.resume()
    else server.pause()
  }
  const listener = net.createServer({ allowHalfOpen: true }, (client) => void accept(client))
  const destroyAll = () => {
    for (const { client, server } of pairs) {
      client.destroy()
      server.destroy()
    }
  }
  return new Promise((resolve) => {
    listener.listen(0, '127.0.0.1', () =>
      resolve({
        port: (listener.address() as AddressInfo).port,
        clientPorts: () => [...pairs].flatMap(({ server }) => server.localPort ?? []),
        async cut(ms) {
          isCut = true
          destroyAll()
          await Bun.sleep(ms)
          isCut = false
        },
        refuse() {
          isCut = true
          destroyAll()
          return {
            async [Symbol.asyncDispose]() {
              isCut = false
            },
          }
        },
        async cutCommits(ms, cut) {
          commitCut = cut
          await Bun.sleep(ms)
          commitCut = undefined
        },
        async silence(ms) {
          const { promise, resolve: end } = Promise.withResolvers<void>()
          silence = promise
          for (const pair of pairs) for (const each of Object.values(pair)) each.pause()
          await Bun.sleep(ms)
          silence = undefined
          for (const pair of pairs) for (const each of Object.values(pair)) each.resume()
          end()
        },
        drop() {
          const dropped = [...pairs]
          for (const pair of dropped) dropPackets(pair)
          return () => dropped.filter((pair) => pairs.has(pair)).length
        },
        stop() {
          listener.close()
          destroyAll()
        },
      }),
    )
  })
}

type Joined = {
  closed(): void
  /** Whether what the client sends is not to be passed on. */
  isTaken(chunk: Buffer): boolean
}

/** Passes what each end sends on to the other, until one is closed. */
function join({ client, server }: Pair, { closed, isTaken }: Joined): void {
  for (const [from, to] of [
    [client, server],
    [server, client],
  ] as const) {
    from.on('error', () => undefined)
    from.on('data', (chunk: Buffer) => {
      if (from !== client || !isTaken(chunk)) to.write(chunk)
    })
    from.on('end', () => void to.end())
    from.on('close', () => {
      closed()
      to.destroy()
    })
  }
}

/** A statement that is a transaction of its own, or the end of one. */
function isCommit(chunk: Buffer): boolean {
  return chunk.includes('commit_changes') || chunk.includes('COMMIT\0')
}

function cutAt({ client, server }: Pair, chunk: Buffer, cut: CommitCut): void {
  server.removeAllListeners('data')
  if (cut === 'answer') {
    server.on('data', () => client.destroy())
    server.write(chunk)
    return
  }
  if (cut !== 'request') {
    // The server reads the commit, and then the end of the connection.
    client.removeAllListeners('close')
    server.resume()
    setTimeout(() => void server.end(chunk), cut)
  }
  client.destroy()
}

function dropPackets({ client, server }: Pair): void {
  // Read, or the end of the client would not be seen.
  client.removeAllListeners('data')
  client.on('data', () => undefined)
  client.on('end', () => client.destroy())
  server.pause()
}
