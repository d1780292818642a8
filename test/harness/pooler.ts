import net, { type AddressInfo, type Socket } from 'node:net'

type PoolerOptions = {
  /** Connections to the server. */
  servers: number
  /** What a client gets: one of them for a transaction, or until it leaves. */
  mode: 'longest idle' | 'shortest idle' | 'session'
}

type Server = { socket: Socket; client: Client | undefined }
type Client = { socket: Socket; server: Server | undefined; waiting: Buffer[] }

/** A message of the server: its type, its length, its body. */
const messageOf = (type: string, body: readonly number[]) =>
  Buffer.from([type.charCodeAt(0), 0, 0, 0, body.length + 4, ...body])
const greeting = Buffer.concat([
  messageOf('R', [0, 0, 0, 0]),
  // A process and a secret that the pooler makes up, as pgbouncer does.
  messageOf('K', [0x7f, 1, 2, 3, 4, 5, 6, 7]),
  messageOf('Z', ['I'.charCodeAt(0)]),
])

/** A pooler before a server that asks for no password, for clients of one user and database. */
export async function startPooler(port: number, { servers, mode }: PoolerOptions) {
  const idle: Server[] = []
  const queue: Client[] = []
  const sockets = new Set<Socket>()
  let opened: Promise<unknown> | undefined

  const serve = (server: Server) => {
    const client = queue.shift()
    server.client = client
    if (client === undefined)
      return void (mode === 'shortest idle' ? idle.unshift(server) : idle.push(server))
    client.server = server
    for (const each of client.waiting.splice(0)) server.socket.write(each)
  }
  const send = (client: Client, message: Buffer) => {
    if (client.server !== undefined) return void client.server.socket.write(message)
    client.waiting.push(message)
    if (queue.includes(client)) return
    queue.push(client)
    const server = idle.shift()
    if (server) serve(server)
  }
  /** Opens a connection with the first message of a client. */
  const open = (startup: Buffer) => {
    const socket = net.connect({ port, host: '127.0.0.1' })
    const server: Server = { socket, client: undefined }
    const ready = Promise.withResolvers<void>()
    sockets.add(socket)
    let isReady = false
    let bytes = Buffer.alloc(0)
    socket.on('error', () => undefined)
    socket.write(startup)
    socket.on('data', (chunk: Buffer) => {
      bytes = Buffer.concat([bytes, chunk])
      while (bytes.length >= 5 && bytes.length >= 1 + bytes.readInt32BE(1)) {
        const message = bytes.subarray(0, 1 + bytes.readInt32BE(1))
        bytes = bytes.subarray(message.length)
        const isEnd = message[0] === 'Z'.charCodeAt(0) && message[5] === 'I'.charCodeAt(0)
        const { client } = server
        if (isReady) client?.socket.write(message)
        if (!isEnd || (isReady && mode === 'session')) continue
        if (client) client.server = undefined
        isReady = true
        serve(server)
        ready.resolve()
      }
    })
    return ready.promise
  }
  const listener = net.createServer((socket) => {
    const client: Client = { socket, server: undefined, waiting: [] }
    sockets.add(socket)
    let isStarted = false
    socket.on('error', () => undefined)
    socket.on('data', (chunk: Buffer) => {
      if (isStarted) return send(client, chunk)
      isStarted = true
      opened ??= Promise.all(Array.from({ length: servers }, () => open(chunk)))
      void opened.then(() => void socket.write(greeting))
    })
  })
  await new Promise<void>((resolve) => void listener.listen(0, '127.0.0.1', resolve))
  return {
    port: (listener.address() as AddressInfo).port,
    async [Symbol.asyncDispose]() {
      listener.close()
      for (const socket of sockets) socket.destroy()
    },
  }
}
