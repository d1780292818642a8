import tls from 'node:tls'

export type Peer = {
  /** DNS names of the server's certificate. */
  names: string
  /** Why the certificate is not trusted; undefined when it is. */
  fault: string | undefined
  serial: string
  curve: string | undefined
  send(text: string): void
  /** All that was received. */
  received(): string
  isClosed(): boolean
  end(): void
}

export type Asked = { port: number; name: string; ca?: string; from?: string }

/** A TLS connection on this machine, or why there is none. */
export function connect({ port, name, ca, from }: Asked): Promise<Peer | string> {
  const { promise, resolve } = Promise.withResolvers<Peer | string>()
  const socket = tls.connect({
    host: '127.0.0.1',
    port,
    servername: name,
    rejectUnauthorized: false,
    ...(from === undefined ? {} : { localAddress: from }),
    ...(ca === undefined ? {} : { ca }),
  })
  let received = ''
  let isClosed = false
  socket.on('data', (chunk) => {
    received += chunk.toString('latin1')
  })
  socket.on('error', ({ message }) => resolve(message))
  socket.on('close', () => {
    isClosed = true
    resolve('closed')
  })
  socket.on('secureConnect', () => {
    const { subjectaltname = '', serialNumber, asn1Curve } = socket.getPeerCertificate()
    const fault = socket.authorized ? undefined : String(socket.authorizationError)
    resolve({
      names: subjectaltname,
      fault,
      serial: serialNumber,
      curve: asn1Curve,
      send: (text) => void socket.write(text),
      received: () => received,
      isClosed: () => isClosed,
      end: () => socket.destroy(),
    })
  })
  return promise
}

/** The same, where a connection is expected. */
export async function connected(asked: Asked): Promise<Peer> {
  const peer = await connect(asked)
  if (typeof peer === 'string') throw new Error(`no connection: ${peer}`)
  return peer
}
