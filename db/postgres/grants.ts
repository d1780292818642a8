import type { GrantLedger } from '../GrantLedger'
import { grants, grantTopUps } from '../schema'
import { decoderOf, rowsOf } from '../select'
import type { Parts } from './parts'
import { selectsOf } from './reader'

const ofAddress = 'WHERE network = $network AND lower(address) = lower($address)'
/** Sums of a day, kept by each grant. A day without them is summed from its rows. */
const tally = `SELECT grants, wei::text FROM grant_days WHERE network = $1 AND day_from = $2`
const sums = `SELECT count(*) AS grants, coalesce(sum(amount_wei::numeric + fee_wei::numeric), 0)::text AS wei
  FROM (
    SELECT amount_wei, fee_wei FROM grants WHERE network = $1 AND created_at >= $2
    UNION ALL
    SELECT amount_wei, fee_wei FROM grant_top_ups WHERE network = $1 AND created_at >= $2
  ) AS spent`

/** Grants and top-ups. Rows are only added; only their gas cost changes. */
export function createGrants({ commits, reader }: Pick<Parts, 'commits' | 'reader'>): GrantLedger {
  const selects = selectsOf(reader)
  const grantOf = rowsOf(selects, grants, decoderOf(grants)).one(ofAddress)
  const topUpOf = rowsOf(selects, grantTopUps, decoderOf(grantTopUps)).one(ofAddress)
  return {
    find: (network, address) => grantOf({ network, address }),
    findTopUp: (network, address) => topUpOf({ network, address }),
    setFee: ({ network, address, isTopUp }, feeWei) =>
      commits.add({
        call: 'set_grant_fee',
        input: { network, address, isTopUp, feeWei: String(feeWei) },
        key: `grant:${network}`,
      }),
    async tallySince(network, from) {
      const values = [network, from]
      const found =
        (await reader.one<Sums>(tally, values)) ?? (await reader.one<Sums>(sums, values))
      return { grants: found?.grants ?? 0, wei: BigInt(found?.wei ?? 0) }
    },
  }
}

type Sums = { grants: number; wei: string }
