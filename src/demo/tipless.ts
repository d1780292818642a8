import { numberToHex } from 'viem'
import { type Chain, request } from './chains'

/** The members of a JSON-RPC 2.0 call that are read here. */
type Call = { id?: unknown; method?: string; params?: unknown[] }

/**
 * The same chain behind a node that suggests no tip, as the sequencer of Robinhood Chain does,
 * which orders by arrival. anvil suggests 1 gwei, far above the base fee that wallets see there.
 * `eth_fillTransaction` writes the fees of geth: twice the base fee, and no tip. `port` 0: a free
 * one. `stop` stops this proxy, not the node.
 */
export function withoutTip(chain: Chain, port: number): Chain {
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port,
    reusePort: false,
    // eth_sendRawTransactionSync waits for a block.
    idleTimeout: 0,
    async fetch(incoming) {
      if (incoming.method === 'OPTIONS') return new Response(null, { headers: cors })
      const text = await incoming.text()
      const body = parse(text)
      // Wallets send several calls in one request.
      const answer = Array.isArray(body)
        ? await Promise.all(body.map((each) => answerOf(chain, each)))
        : await answerOf(chain, body ?? text)
      return Response.json(answer, { headers: cors })
    },
  })
  return {
    ...chain,
    url: `http://127.0.0.1:${server.port}`,
    port: server.port ?? port,
    stop: () => server.stop(true),
  }
}

/** Pages of wallets call from other origins, which anvil allows. */
const cors = {
  'Access-Control-Allow-Origin': '*',
  'Access-Control-Allow-Headers': '*',
}

async function answerOf(chain: Chain, call: unknown): Promise<unknown> {
  if (!isCall(call)) return forward(chain, call)
  const { id = null, method, params } = call
  if (method === 'eth_maxPriorityFeePerGas') return { jsonrpc: '2.0', id, result: '0x0' }
  if (method === 'eth_gasPrice') {
    return { jsonrpc: '2.0', id, result: numberToHex(await baseFeeOf(chain)) }
  }
  const [asked] = params ?? []
  const isFilled = method === 'eth_fillTransaction' && isCall(asked)
  return forward(chain, isFilled ? { ...call, params: [await fill(chain, asked)] } : call)
}

async function fill(chain: Chain, asked: object): Promise<object> {
  const maxFeePerGas = numberToHex(2n * (await baseFeeOf(chain)))
  return { maxFeePerGas, maxPriorityFeePerGas: '0x0', ...asked }
}

async function forward({ url }: Chain, call: unknown): Promise<unknown> {
  const headers = { 'content-type': 'application/json' }
  const body = typeof call === 'string' ? call : JSON.stringify(call)
  return (await fetch(url, { method: 'POST', headers, body })).json()
}

async function baseFeeOf({ url }: Chain): Promise<bigint> {
  const [block] = await request(url, [['eth_getBlockByNumber', ['latest', false]]])
  return BigInt((block as { baseFeePerGas: string }).baseFeePerGas)
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    // Let the node report the fault.
    return undefined
  }
}

function isCall(body: unknown): body is Call & object {
  return typeof body === 'object' && body !== null && !Array.isArray(body)
}
