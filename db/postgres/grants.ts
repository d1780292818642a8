import type { Address } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { GrantLedger } from '../GrantLedger'
import { grants, grantTopUps } from '../schema'
import { decoderOf } from '../select'
import type { Parts } from './parts'
import type { Json } from './rows'

const decodeGrant = decoderOf(grants)
const decodeTopUp = decoderOf(grantTopUps)

type Selected = { row: Json }

const ofAddress = 'WHERE network = $1 AND lower(address) = lower($2)'
const grantOf = `SELECT to_jsonb(grants) AS row FROM grants ${ofAddress}`
const topUpOf = `SELECT to_jsonb(grant_top_ups) AS row FROM grant_top_ups ${ofAddress}`
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
  const one = (text: string, network: Network.Id, address: Address) =>
    reader.one<Selected>(text, [network, address])
  return {
    async find(network, address) {
      const found = await one(grantOf, network, address)
      return found && decodeGrant(found.row)
    },
    async findTopUp(network, address) {
      const found = await one(topUpOf, network, address)
      return found && decodeTopUp(found.row)
    },
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
