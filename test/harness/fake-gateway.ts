import type { Message } from './mcp-wallet'

/** An MCP endpoint that answers what a test wants, as a hostile gateway may. */

export const usdc = '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'
export const payee = '0x14dC79964da2C08b23698B3D3cc7Ca32193d9955'

/** An offer of `amount` atomic units, of USDC on Base by default. */
export const offer = (amount: string, more: object = {}) => ({
  scheme: 'exact',
  network: 'eip155:8453',
  asset: usdc,
  payTo: payee,
  amount,
  maxTimeoutSeconds: 300,
  extra: { name: 'USD Coin', version: '2', assetTransferMethod: 'eip3009' },
  ...more,
})

/** The result that asks for a payment; `problem`: why it refuses one. */
export const offers = (
  accepts: readonly object[],
  problem: object = {},
  resource: object = {},
) => ({
  isError: true,
  content: [{ type: 'text', text: 'Payment required' }],
  structuredContent: { x402Version: 2, error: 'Payment required', resource, accepts },
  _meta: { 'org.paymentauth/payment-required': { problem } },
})

export const problem = (code: string, more: object = {}) => ({
  isError: true,
  content: [{ type: 'text', text: `${code}: no` }],
  structuredContent: { code, detail: 'no', ...more },
})

export const paid = (text: string, more: object = {}) => ({
  content: [{ type: 'text', text }],
  _meta: { 'x402/payment-response': { success: true, transaction: `0x${'ab'.repeat(32)}` } },
  ...more,
})

export const tool = (name: string, more: object = {}) => ({
  name,
  description: `Tool ${name}.`,
  inputSchema: { type: 'object', properties: {} },
  ...more,
})

export type Answering = (message: Message, paying: boolean) => object | Response

export type Fake = {
  url: string
  messages: Message[]
  answer: Answering
  /** Answers a request that is not for the endpoint. */
  http: (request: Request) => Response | Promise<Response>
  /** Payments as they arrived. */
  payments(): Sent[]
  stop(): Promise<void>
}

export function startFake(answer: Answering): Fake {
  const messages: Message[] = []
  const serve = async (request: Request): Promise<Response> => {
    if (!request.url.endsWith('/mcp')) return fake.http(request)
    const message = (await request.json()) as Message
    messages.push(message)
    const answered = fake.answer(message, message.params._meta !== undefined)
    if (answered instanceof Response) return answered
    return Response.json({ jsonrpc: '2.0', id: message.id, result: answered })
  }
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    idleTimeout: 0,
    fetch: serve,
  })
  const fake: Fake = {
    url: `http://127.0.0.1:${server.port}`,
    messages,
    answer,
    http: () => new Response('not found', { status: 404 }),
    payments: () =>
      messages.flatMap(({ params }) => {
        const payment = params._meta?.['x402/payment']
        return payment === undefined ? [] : [payment as Sent]
      }),
    stop: () => server.stop(true),
  }
  return fake
}

export type Sent = {
  accepted: Record<string, unknown>
  payload: { authorization: Record<string, string>; signature: string }
}
