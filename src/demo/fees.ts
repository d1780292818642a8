import { numberToHex } from 'viem'
import { type Chain, mine, request } from './chains'

/** The members of a JSON-RPC 2.0 call that are read here. */
type Call = { id?: unknown; method?: string; params?: unknown[] }

/** Wei. Without `baseFeeWei` the base fee is that of the node. */
export type ChainFees = { tipWei: bigint; baseFeeWei?: bigint }

/** Robinhood Chain, whose sequencer orders by arrival and takes no tips. */
export const robinhoodFees = { baseFeeWei: 36_000_000n, tipWei: 0n }

/** Base, also for networks whose fees are not known here. */
export const baseFees = { baseFeeWei: 5_000_000n, tipWei: 1_000_000n }

/**
 * The same chain behind a node that has the fees of the real network. anvil suggests a tip of 1 gwei
 * and begins with a base fee of 1 gwei, which costs several times the price of a sale. Each block
 * lowers that fee by an eighth, so it is set again for each transaction. `eth_fillTransaction`
 * writes the fees of geth: twice the base fee, and the tip. `port` 0: a free one. `stop` stops this
 * proxy, not the node.
 */
export async function withFees(chain: Chain, fees: ChainFees, port: number): Promise<Chain> {
  if (fees.baseFeeWei !== undefined) {
    await holdBaseFee(chain, fees)
    await mine(chain)
  }
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
        ? await Promise.all(body.map((each) => answerOf(chain, fees, each)))
        : await answerOf(chain, fees, body ?? text)
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
const cors = { 'Access-Control-Allow-Origin': '*', 'Access-Control-Allow-Headers': '*' }

async function answerOf(chain: Chain, fees: ChainFees, call: unknown): Promise<unknown> {
  if (!isCall(call)) return forward(chain, call)
  const { id = null, method, params } = call
  const answer = (wei: bigint) => ({ jsonrpc: '2.0', id, result: numberToHex(wei) })
  if (method === 'eth_maxPriorityFeePerGas') return answer(fees.tipWei)
  if (method === 'eth_gasPrice') return answer((await baseFeeOf(chain)) + fees.tipWei)
  if (method?.startsWith('eth_send') === true) await holdBaseFee(chain, fees)
  const [asked] = params ?? []
  const isFilled = method === 'eth_fillTransaction' && isCall(asked)
  return forward(chain, isFilled ? { ...call, params: [await fill(chain, fees, asked)] } : call)
}

async function holdBaseFee(chain: Chain, { baseFeeWei }: ChainFees): Promise<void> {
  if (baseFeeWei === undefined) return
  await chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(baseFeeWei)])
}

async function fill(chain: Chain, { tipWei }: ChainFees, asked: object): Promise<object> {
  const maxFeePerGas = numberToHex(2n * (await baseFeeOf(chain)) + tipWei)
  return { maxFeePerGas, maxPriorityFeePerGas: numberToHex(tipWei), ...asked }
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
