import type { Address, Hex } from 'viem'
import type { Sponsor } from '../config/Config'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import * as Crypto from '../protocol/Crypto'
import type * as Network from '../protocol/Network'
import type { Code } from '../protocol/Problem'

/**
 * Which addresses get native coin for the approve of Permit2, and how much. Only holders of the
 * asset get it, and never more than the approve needs. The rest must be worth less than collecting
 * it costs.
 */

/** The state of an address, read in one block where that is possible. */
export type Facts = {
  code: 'eoa' | 'contract'
  assetAtomic: bigint
  /** `min_balance_age_blocks` earlier; undefined when the chain is younger than that. */
  assetBeforeAtomic: bigint | undefined
  allowanceAtomic: bigint
  balanceWei: bigint
  /** Account nonce of its next transaction. */
  nonce: number
}

/**
 * The cost of an approve now. `gas` is the node's estimate for this address, `tipWei` the tip that
 * the node suggests to wallets.
 */
export type Price = { gas: bigint; baseFeeWei: bigint; tipWei: bigint }

/** Why an address gets nothing; `detail` is safe to send. */
type AddressRefusal = { code: Code; detail: string }

/** Ways to pay that cost less than an approval, the cheapest first: x402 names. */
type Alternative = 'eip3009' | 'eip2612'

/** Gas of a transfer to an account without code, before what chains add for L1 data. */
const plainGas = 21_000n
/** The most that a chain may take for a transfer. */
const transferGasMax = 100_000n

/**
 * Gas limit of a grant, from the node's estimate of a transfer to an account without code. It leaves
 * no gas for code: an address that delegates (EIP-7702) after its check must not run code at our cost,
 * so such a transfer fails. What a chain adds for L1 data may double until then. Undefined: more than a
 * grant may cost.
 */
export function transferGasOf(estimate: bigint): bigint | undefined {
  const dataGas = estimate > plainGas ? estimate - plainGas : 0n
  const limit = plainGas + 2n * dataGas
  return limit > transferGasMax ? undefined : limit
}

/** Id of the job of the only grant of an address. */
export function idOf(network: Network.Id, address: Address): string {
  return `grant:${network}:${address}`
}

/** Id of the job of the only top-up of a grant. */
export function topUpIdOf(network: Network.Id, address: Address): string {
  return `${idOf(network, address)}:2`
}

/** The message that an address signs (EIP-191) to prove that it made the request. */
export function messageOf(network: Network.Id, address: Address): string {
  return `turnpike gas sponsor ${network} ${address}`
}

/** Whether the address signed the message, in either spelling of the address. */
export function isSigned(network: Network.Id, address: Address, signature: string): boolean {
  const lower = address.toLowerCase() as Address
  return [address, lower].some((spelling) => {
    const digest = Crypto.messageDigest(messageOf(network, spelling))
    return Crypto.recover(digest, signature) === address
  })
}

/** Ways that need no approval, or no grant for it. */
export function alternatives(asset: Asset): Alternative[] {
  return [
    ...(asset.transfer.includes('eip3009') ? (['eip3009'] as const) : []),
    ...(asset.eip2612 ? (['eip2612'] as const) : []),
  ]
}

/** Why the address gets nothing, independent of the client. */
export function refusalOf(
  facts: Facts,
  asset: Asset,
  sponsor: Sponsor,
): AddressRefusal | undefined {
  const { minBalanceAtomic, minBalanceAgeBlocks } = sponsor
  if (facts.code === 'contract') {
    const detail = 'The address has code, or delegates to code; only plain accounts are sponsored.'
    return { code: 'not-an-eoa', detail }
  }
  if (facts.assetAtomic < minBalanceAtomic) {
    const detail = `The address needs at least ${minBalanceAtomic} atomic units of ${asset.symbol}.`
    return { code: 'asset-balance-too-low', detail }
  }
  if ((facts.assetBeforeAtomic ?? 0n) < minBalanceAtomic) {
    const detail = `The address must have held its ${asset.symbol} for ${minBalanceAgeBlocks} blocks.`
    return { code: 'balance-too-young', detail }
  }
  return undefined
}

/** Cost of an approve that is still included after one block of rising base fee, wei. */
export function leastWei({ gas, baseFeeWei }: Price): bigint {
  return gas * ceilDiv(baseFeeWei * 9n, 8n)
}

/**
 * The bid for a unit of gas: viem's default where the node does not fill in transactions. Many wallets
 * reserve twice the base fee. A grant for that would be worth more than it costs to collect it: an
 * attacker delegates several addresses (EIP-7702), and one transaction of another account approves
 * with all, moves their dollars to the next addresses and takes the coin.
 */
function bidWei({ baseFeeWei, tipWei }: Omit<Price, 'gas'>): bigint {
  return ceilDiv(baseFeeWei * 6n, 5n) + tipWei
}

/** The approve, ready to be signed: amounts are decimal strings. */
export type Approve = {
  to: Address
  data: Hex
  gas: string
  maxFeePerGas: string
  maxPriorityFeePerGas: string
  nonce: number
  chainId: number
}

/** The approve that an address can pay for with its balance; undefined when that is too little. */
export function approveOf(
  call: { to: Address; data: Hex },
  chainId: number,
  price: Price,
  { balanceWei, nonce }: Pick<Facts, 'balanceWei' | 'nonce'>,
): Approve | undefined {
  if (balanceWei < leastWei(price)) return undefined
  const affordable = balanceWei / price.gas
  const maxFee = Amount.least(bidWei(price), affordable)
  return {
    ...call,
    gas: String(price.gas),
    maxFeePerGas: String(maxFee),
    maxPriorityFeePerGas: String(Amount.least(price.tipWei, maxFee)),
    nonce,
    chainId,
  }
}

/**
 * The most that one grant may be, wei: `max_grant_wei`, and never worth more than the balance that
 * an address must hold.
 */
export function capWei(sponsor: Sponsor, decimals: number): bigint {
  // The price may have decimals, of which six are kept.
  const priceMicroUsd = BigInt(Math.ceil(sponsor.ethPriceUsd * 1e6))
  const worth = (sponsor.minBalanceAtomic * 10n ** 24n) / (priceMicroUsd * 10n ** BigInt(decimals))
  return Amount.least(worth, sponsor.maxGrantWei)
}

/**
 * The amount that an address lacks for the approve of the answer, within the cap.
 * `too-expensive`: the cap is too low for the approve to be included.
 */
export function amountOf(
  balanceWei: bigint,
  price: Price,
  cap: bigint,
): { kind: 'amount'; wei: bigint } | { kind: 'has-gas' } | { kind: 'too-expensive' } {
  const wanted = price.gas * bidWei(price) - balanceWei
  if (wanted <= 0n) return { kind: 'has-gas' }
  const wei = Amount.least(wanted, cap)
  return balanceWei + wei < leastWei(price) ? { kind: 'too-expensive' } : { kind: 'amount', wei }
}

/**
 * The top-up of an unspent grant after fees rose; both together stay within the cap. Undefined when
 * the grant is still enough, a part of it was spent, or the cap is reached.
 */
export function topUpOf(
  balanceWei: bigint,
  price: Price,
  grant: { amountWei: bigint; cap: bigint },
): bigint | undefined {
  if (balanceWei < grant.amountWei || grant.cap <= grant.amountWei) return undefined
  const amount = amountOf(balanceWei, price, grant.cap - grant.amountWei)
  return amount.kind === 'amount' ? amount.wei : undefined
}

function ceilDiv(value: bigint, by: bigint): bigint {
  return (value + by - 1n) / by
}
