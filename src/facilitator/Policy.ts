import type { Address, Hex } from 'viem'
import type { Config } from '../config/Config'
import * as Channel from '../protocol/Channel'
import * as Crypto from '../protocol/Crypto'
import type * as Facilitation from '../protocol/Facilitation'
import * as Permit from '../protocol/Permit'
import type { Fault } from '../protocol/Problem'
import * as Upto from '../protocol/Upto'

/** The payees and assets that this facilitator spends its gas for. */
export type Policy = {
  /** Undefined: any payee that is not refused. */
  payees: ReadonlySet<Address> | undefined
  /** Payees that may use all of the gas of a day; undefined: any payee. */
  unlimited: ReadonlySet<Address> | undefined
  /** Never paid: our own accounts, and contracts from which money could not be recovered. */
  refused: ReadonlySet<Address>
  /** The accepted asset, by network. */
  assets: ReadonlyMap<string, Address>
  minAmountAtomic: bigint
  /**
   * Whether the scheme `upto` is settled. Only a caller with an API key is known to be no buyer: the payer
   * has its signature before any server has it, so it may be the first to verify it, and addresses are
   * shared. Without keys it could settle its own ceiling for nothing after a server has verified it.
   */
  takesUpto: boolean
}

/** The policy of a configuration. `own`: addresses of our relayers and of the stock desk. */
export function from(
  { service, networks, merchants, facilitator }: Config,
  own: readonly Address[],
): Policy {
  const { payTo, assets, minAmountAtomic, apiKeyHashes, uptoWithoutKeys } = facilitator
  const served = merchants.filter(({ outOfService }) => outOfService === undefined)
  const payouts = [service.payout, ...served.map(({ payout }) => payout)]
  const allowed = payTo === 'own' ? payouts : payTo === 'any' ? undefined : payTo
  const accepted = networks.filter(
    ({ asset }) => assets.length === 0 || assets.includes(asset.address),
  )
  return {
    payees: allowed && new Set(allowed),
    unlimited: payTo === 'any' && apiKeyHashes.length === 0 ? new Set(payouts) : undefined,
    refused: new Set([
      ...own,
      ...networks.map(({ asset }) => asset.address),
      Permit.permit2Address,
      Permit.proxyAddress,
      Upto.proxyAddress,
      Channel.settlementAddress,
      Channel.eip3009CollectorAddress,
      Channel.permit2CollectorAddress,
    ]),
    assets: new Map(accepted.map(({ id, asset }) => [id, asset.address])),
    minAmountAtomic,
    takesUpto: apiKeyHashes.length > 0 || uptoWithoutKeys,
  }
}

/**
 * Whether a payee is limited to a share of the gas: it is not a payout of the configuration, and
 * callers need no API key.
 */
export function isUnlisted({ unlimited }: Policy, payee: Address): boolean {
  return unlimited?.has(payee) === false
}

/** Why these requirements are refused, independent of the signer. No I/O. */
export function check(
  policy: Policy,
  { parsed, requirements }: Facilitation.FacilitatorRequest,
): Fault | undefined {
  const { scheme, asset, payTo, amountAtomic, network } = requirements
  if (scheme === 'upto' && !policy.takesUpto) {
    const detail =
      'This facilitator settles upto only for callers with an API key: ask its operator for one, or sell by exact.'
    return { code: 'unsupported_scheme', detail }
  }
  // A charge may be nothing where there is no minimum; its ceiling may not.
  const isFree = scheme === 'upto' && amountAtomic === 0n && policy.minAmountAtomic === 0n
  const paidAtomic = isFree ? parsed.signed.amountAtomic : amountAtomic
  const { payer } = parsed.signed
  return checkPayee(policy, { network, asset, payTo, payer }) ?? checkAmount(policy, paidAtomic)
}

type PayeeTerms = { network: string; asset: Address; payTo: Address; payer: Address | undefined }

/** Why nothing is settled to a payee in an asset. */
export function checkPayee(
  policy: Policy,
  { network, asset, payTo, payer }: PayeeTerms,
): Fault | undefined {
  if (policy.assets.get(network) !== asset) {
    const own = policy.assets.get(network) ?? 'none'
    return { code: 'asset_not_allowed', detail: `This facilitator settles ${own} on ${network}.` }
  }
  if (policy.refused.has(payTo) || policy.payees?.has(payTo) === false) {
    const detail = `This facilitator does not settle for ${payTo}: ask its operator for pay_to.`
    return { code: 'payee_not_allowed', detail }
  }
  if (payTo === payer) {
    return { code: 'payee_not_allowed', detail: 'The payer and the payee are the same.' }
  }
  return undefined
}

/** Why so little is not worth a transaction. */
export function checkAmount({ minAmountAtomic }: Policy, paidAtomic: bigint): Fault | undefined {
  const leastAtomic = minAmountAtomic > 0n ? minAmountAtomic : 1n
  if (paidAtomic >= leastAtomic) return undefined
  const detail = `The amount is ${paidAtomic}, below the least of ${leastAtomic} atomic units.`
  return { code: 'amount_below_minimum', detail }
}

/**
 * The caller's API key, as the sha256 that the configuration lists. Undefined when the request has
 * none of them. `Authorization: Bearer KEY` or `X-API-Key: KEY`.
 */
export function keyOf(headers: Headers, hashes: readonly Hex[]): Hex | undefined {
  const bearer = /^bearer +(\S+)$/i.exec(headers.get('authorization') ?? '')?.[1]
  const key = headers.get('x-api-key') ?? bearer
  if (key === undefined) return undefined
  const hash: Hex = `0x${Crypto.sha256(key)}`
  let isKnown = false
  // Compare all hashes, so that the time does not tell which one matched.
  for (const known of hashes) isKnown = Crypto.equal(hash, known) || isKnown
  return isKnown ? hash : undefined
}

/** Route of a payment. It separates the payments of each caller with an API key. */
export function routeOf(keyHash: Hex | undefined): string {
  return keyHash === undefined ? '' : `key:${keyHash.slice(2, 18)}`
}
