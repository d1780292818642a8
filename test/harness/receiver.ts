import { Webhook as Verifier } from 'standardwebhooks'

/** A message as a receiver gets it. */
export type Received = {
  id: string
  path: string
  headers: Record<string, string>
  /** The bytes that were signed. */
  text: string
  body: { type: string; timestamp: string; data: Record<string, unknown> }
}

type Answer = Response | undefined | Promise<Response | undefined>

export type Receiver = {
  url: string
  /** All that arrived, the oldest first. */
  received: Received[]
  ids(): string[]
  types(): string[]
  /** Answers the next requests; 204 without it and where it returns undefined. */
  answer: ((message: Received) => Answer) | undefined
  stop(): Promise<void>
}

/** A secret of Standard Webhooks, made from one byte. */
export function secretOf(byte: number): string {
  return `whsec_${Buffer.alloc(32, byte).toString('base64')}`
}

export const secret = secretOf(7)

/** An endpoint on this machine. */
export function startReceiver(options: { port?: number; tls?: Bun.TLSOptions } = {}): Receiver {
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: options.port ?? 0,
    ...(options.tls && { tls: options.tls }),
    idleTimeout: 60,
    async fetch(request) {
      const text = await request.text()
      const headers = Object.fromEntries(request.headers)
      const message = {
        id: headers['webhook-id'] ?? '',
        path: new URL(request.url).pathname,
        headers,
        text,
        body: JSON.parse(text),
      }
      receiver.received.push(message)
      return (await receiver.answer?.(message)) ?? new Response(null, { status: 204 })
    },
  })
  const receiver: Receiver = {
    url: `${options.tls ? 'https' : 'http'}://127.0.0.1:${server.port}`,
    received: [],
    ids: () => receiver.received.map(({ id }) => id),
    types: () => receiver.received.map(({ body }) => body.type),
    answer: undefined,
    stop: () => server.stop(true),
  }
  return receiver
}

/** Throws unless the package of Standard Webhooks accepts the signature, at its own time. */
export function verify({ text, headers }: Received, key = secret): unknown {
  return new Verifier(key).verify(text, headers)
}
