import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buyByChannel } from '../../src/cli/buy/by-channel'
import { openChannelFiles } from '../../src/cli/buy/channel-files'
import * as Terms from '../../src/cli/buy/Terms'
import * as Voucher from '../../src/cli/buy/Voucher'
import { account } from '../../src/demo/accounts'
import * as Abi from '../../src/protocol/Abi'
import * as Channel from '../../src/protocol/Channel'
import * as Crypto from '../../src/protocol/Crypto'
import type { JsonObject } from '../../src/protocol/Json'
import { payee } from './shop'
import { sepolia } from './stablecoin'

/** The steps of a recovery vector of x402 (docs/schemes/batch-settlement-recovery-vectors/v0). */
export type Vector = {
  /** What the chain has; undefined: its node does not answer. */
  claimed: bigint | undefined
  /** What the buyer believes to be charged. */
  local: bigint
  price: bigint
  /** What the corrective answers of the server show, one after the other; then it serves. */
  corrections: readonly bigint[]
}

const privateKey = Crypto.bytes(account(1).privateKey)
const balance = 1000n

/** What the buyer signs, is told, and believes in the end. */
export async function runVector({ claimed, local, price, corrections }: Vector) {
  const node = startNode(claimed)
  const home = mkdtempSync(join(tmpdir(), 'turnpike-vector-'))
  const files = openChannelFiles(join(home, 'mcp.sqlite'))
  const [terms] = Terms.ofRequired(requiredOf(price, {}))
  if (terms === undefined) throw new Error('the offer cannot be read')
  const config = Voucher.configOf(terms, account(1).address, 0)
  const id = Channel.idOf(config, sepolia.chainId)
  const signed: bigint[] = []
  await files.use(id, async ({ save }) =>
    save({
      ...{ network: terms.network, config, url: 'https://shop.example.com/paid', isClosing: false },
      ...{ chargedAtomic: local, balanceAtomic: balance, deposit: undefined, sent: [] },
    }),
  )
  const purchase = {
    ...{ terms, url: 'https://shop.example.com/paid', request: 'one', files },
    ...{ privateKey, payer: account(1).address },
    ...{ rpc: node.url, now: Date.now, depositAtomic: undefined, maxAtomic: balance },
    allow: async () => {
      throw new Error('a deposit was signed')
    },
  }
  const send = async ({ payment }: Voucher.Sent) => {
    const { voucher } = JSON.parse(payment).payload as { voucher: { maxClaimableAmount: string } }
    signed.push(BigInt(voucher.maxClaimableAmount))
    const shown = corrections[signed.length - 1]
    if (shown === undefined) return served(price)
    const required = requiredOf(price, correctionOf(id, shown))
    return { answer: 402, reply: { settled: undefined, required, end: 'refused' as const } }
  }
  let told = ''
  try {
    told = await buyByChannel<number, string>(purchase, {
      send,
      finish: async (status, { fault }) => fault ?? `${status}`,
    })
  } catch (error) {
    told = error instanceof Error ? error.message : String(error)
  } finally {
    node.stop()
  }
  const after = files.read(id)?.chargedAtomic
  rmSync(home, { recursive: true })
  return { signed, told, after }
}

function served(price: bigint) {
  const settled = { success: true, extra: { chargedAmount: String(price) } }
  return { answer: 200, reply: { settled, required: undefined, end: 'served' as const } }
}

function requiredOf(price: bigint, extra: JsonObject): JsonObject {
  const { asset, chainId } = sepolia
  const offer = {
    ...{ scheme: Channel.scheme, network: `eip155:${chainId}`, amount: String(price) },
    ...{ asset: asset.address, payTo: payee, maxTimeoutSeconds: 60 },
    extra: {
      ...{ receiverAuthorizer: account(6).address, withdrawDelay: 900, ...asset.eip712 },
      ...extra,
    },
  }
  const error = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
  return { x402Version: 2, error, accepts: [offer] }
}

/** The server's state, proven by a voucher of the buyer: without one no client of x402 takes it. */
function correctionOf(channelId: `0x${string}`, charged: bigint) {
  const digest = Channel.voucherDigest(sepolia.chainId, channelId, charged)
  return {
    channelState: {
      ...{ channelId, balance: String(balance), chargedCumulativeAmount: String(charged) },
    },
    voucherState: {
      signedMaxClaimable: String(charged),
      signature: Crypto.sign(digest, privateKey),
    },
  }
}

/** A node that knows only this channel; it answers nothing when `claimed` is undefined. */
function startNode(claimed: bigint | undefined) {
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    async fetch(request) {
      const asked = (await request.json()) as {
        id: number
        method: string
        params: { data: string }[]
      }
      if (claimed === undefined) return new Response(null, { status: 503 })
      const isChannels = asked.params[0]?.data?.startsWith(
        Channel.channelsCall(`0x${'0'.repeat(64)}`).data.slice(0, 10),
      )
      const words = isChannels ? Abi.uint(balance) + Abi.uint(claimed) : Abi.uint(0n).repeat(2)
      const result =
        asked.method === 'eth_chainId' ? `0x${sepolia.chainId.toString(16)}` : `0x${words}`
      return Response.json({ jsonrpc: '2.0', id: asked.id, result })
    },
  })
  return { url: `http://127.0.0.1:${server.port}`, stop: () => void server.stop(true) }
}
