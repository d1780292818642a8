import { encodeFunctionData, type Hex, numberToHex, parseAbi, toEventSelector } from 'viem'
import type * as Network from '../../src/protocol/Network'
import * as Permit from '../../src/protocol/Permit'
import type { Purchase } from './purchase'
import { clusterRelayers, mintedAtomic, type Payer, type Setup, type Site, tokensOf } from './setup'

/** A Transfer log to the payee on the present chain. */
export type Moved = {
  network: Network.Id
  transaction: Hex
  logIndex: number
  /** Lower case. */
  payer: string
  amountAtomic: bigint
}

/** The data of the chains, read without the tested code. */
export type Ledger = {
  transfers: readonly Moved[]
  /** Serials of the purchases whose credential moved money. */
  paid: ReadonlySet<string>
  balances: readonly { site: Site; payer: Payer; spentAtomic: bigint }[]
  received: readonly { site: Site; atomic: bigint }[]
  /** Tokens that relayers received, atomic. */
  strayAtomic: bigint
}

const abi = parseAbi([
  'function authorizationState(address, bytes32) view returns (bool)',
  'function nonceBitmap(address, uint256) view returns (uint256)',
])
const transferTopic = toEventSelector('Transfer(address,address,uint256)')

export async function readLedger(setup: Setup, purchases: readonly Purchase[]): Promise<Ledger> {
  const { sites, payers, payee } = setup
  const paid = new Set<string>()
  const balances: Ledger['balances'][number][] = []
  const received: Ledger['received'][number][] = []
  let strayAtomic = 0n
  for (const site of sites) {
    for (const serial of await paidOn(site, purchases)) paid.add(serial)
    for (const payer of payers) {
      const balance = await tokensOf(site, payer.account.address)
      balances.push({ site, payer, spentAtomic: mintedAtomic - balance })
    }
    received.push({ site, atomic: await tokensOf(site, payee) })
    for (const { address } of clusterRelayers) strayAtomic += await tokensOf(site, address)
  }
  return { transfers: await readTransfers(setup), paid, balances, received, strayAtomic }
}

/** Every transfer to the payee that the chains have now. */
export async function readTransfers({ sites, payee }: Setup): Promise<Moved[]> {
  const all = await Promise.all(
    sites.map(async ({ id, network, chain }) => {
      const topics = [transferTopic, null, `0x${payee.slice(2).toLowerCase().padStart(64, '0')}`]
      const filter = { address: network.asset.address, topics, fromBlock: '0x0', toBlock: 'latest' }
      return (await logsOf(chain, filter)).map(
        (log): Moved => ({
          network: id,
          transaction: log.transactionHash,
          logIndex: Number(log.logIndex),
          payer: `0x${log.topics[1]?.slice(26)}`,
          amountAtomic: BigInt(log.data),
        }),
      )
    }),
  )
  return all.flat()
}

type Log = {
  transactionHash: Hex
  blockHash: Hex
  logIndex: Hex
  topics: Hex[]
  data: Hex
}

/** Logs of the present chain: after a reorganisation anvil may also give those of the block that is gone. */
export async function logsOf({ rpc }: Pick<Site['chain'], 'rpc'>, filter: object): Promise<Log[]> {
  const logs = (await rpc('eth_getLogs', [filter])) as Log[]
  const kept: Log[] = []
  for (const [hash, own] of Map.groupBy(logs, ({ transactionHash }) => transactionHash)) {
    if (new Set(own.map(({ blockHash }) => blockHash)).size === 1) {
      kept.push(...own)
      continue
    }
    const receipt = (await rpc('eth_getTransactionReceipt', [hash])) as { blockHash: Hex } | null
    kept.push(...own.filter(({ blockHash }) => blockHash === receipt?.blockHash))
  }
  return kept
}

/** What a payer has signed. */
type Signed = Pick<Purchase, 'serial' | 'site' | 'scheme' | 'nonce'> & {
  payer: Pick<Payer, 'account'>
}

/** Serials of purchases with a used nonce: only the gateway uses nonces, and no payer cancels. */
export async function paidOn(site: Site, purchases: readonly Signed[]): Promise<string[]> {
  const signed = purchases.filter((each) => each.site === site && each.nonce !== undefined)
  const serials: string[] = []
  for (let start = 0; start < signed.length; start += 200) {
    const part = signed.slice(start, start + 200)
    const response = await fetch(site.chain.url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(
        part.map((purchase, id) => ({
          jsonrpc: '2.0',
          id,
          method: 'eth_call',
          params: [stateCall(purchase), 'latest'],
        })),
      ),
    })
    const answers = (await response.json()) as { id: number; result?: Hex }[]
    for (const { id, result } of answers) {
      const purchase = part[id]
      if (purchase === undefined || result === undefined) throw new Error('no state of a nonce')
      const bit = isPermit(purchase) ? BigInt(purchase.nonce ?? 0) & 0xffn : 0n
      if (((BigInt(result) >> bit) & 1n) === 1n) serials.push(purchase.serial)
    }
  }
  return serials
}

function stateCall(purchase: Signed): { to: Hex; data: Hex } {
  const { nonce = numberToHex(0, { size: 32 }), site, payer } = purchase
  const { address } = payer.account
  if (isPermit(purchase)) {
    const args = [address, BigInt(nonce) >> 8n] as const
    const data = encodeFunctionData({ abi, functionName: 'nonceBitmap', args })
    return { to: Permit.permit2Address, data }
  }
  const args = [address, nonce] as const
  const data = encodeFunctionData({ abi, functionName: 'authorizationState', args })
  return { to: site.network.asset.address, data }
}

function isPermit({ scheme }: Signed): boolean {
  return scheme === 'mpp-permit2' || scheme === 'x402-permit2' || scheme === 'upto'
}
