import { getTableName } from 'drizzle-orm'
import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { roomFor, type Tally } from '../GrantBudget'
import type { GrantLedger } from '../GrantLedger'
import type { JobRider } from '../Ledger'
import { grants, grantTopUps } from '../schema'
import { decoderOf } from '../select'
import type { Db } from './open'
import { insertInto, statement } from './statement'
import type { Outbox } from './webhooks'
import { isDuplicate, RefusedError, write } from './write'

/** Grants and top-ups. Rows are only added; only their gas cost changes. */
export function createGrants(db: Db, outbox: Outbox) {
  const firsts = createRows(db, grants)
  const topUps = createRows(db, grantTopUps)
  const amounts = 'SELECT amount_wei AS amount, fee_wei AS fee FROM'
  const isSince = 'WHERE network = $network AND created_at >= $from'
  const since = statement<{ amount: string; fee: string }>(
    db,
    `${amounts} grants ${isSince} UNION ALL ${amounts} grant_top_ups ${isSince}`,
  )
  /** Sums of the day that began at `from`, by network. */
  const tallies = new Map<Network.Id, Tally & { from: number }>()

  function tallySince(network: Network.Id, from: number): Tally {
    const known = tallies.get(network)
    if (known?.from === from) return known
    const all = since().all({ network, from })
    const wei = all.reduce((sum, row) => sum + BigInt(row.amount) + BigInt(row.fee), 0n)
    const fresh = { from, grants: all.length, wei }
    tallies.set(network, fresh)
    return fresh
  }

  function add(network: Network.Id, at: number, more: Tally): void {
    const known = tallies.get(network)
    if (known === undefined || at < known.from) return
    tallies.set(network, {
      from: known.from,
      grants: known.grants + more.grants,
      wei: known.wei + more.wei,
    })
  }

  const ledger: GrantLedger = {
    find: async (network, address) => firsts.find(network, address),
    findTopUp: async (network, address) => topUps.find(network, address),
    async setFee({ network, address, isTopUp }, feeWei) {
      const rows = isTopUp ? topUps : firsts
      const row = rows.find(network, address)
      if (row === undefined || row.feeWei === feeWei) return
      rows.setFee(network, address, feeWei)
      add(network, row.createdAt, { grants: 0, wei: feeWei - row.feeWei })
    },
    tallySince: async (network, from) => tallySince(network, from),
  }
  return {
    ledger,
    riders: {
      ride({ grant }: Extract<JobRider, { kind: 'grant' }>, transactionHash: Hex): void {
        const { budget, isSigned, row } = grant
        const wei = row.amountWei + row.feeWei
        const room = roomFor(tallySince(row.network, budget.from), budget, wei)
        if (room === 'spent') throw new RefusedError('grants-spent')
        if (room === 'signed' && !isSigned) throw new RefusedError('grants-signed-only')
        if (grant.isTopUp) topUps.insert({ ...grant.row, transactionHash })
        else firsts.insert({ ...grant.row, transactionHash })
        add(row.network, row.createdAt, { grants: 1, wei })
        outbox.granted(grant, tallySince(row.network, budget.from))
      },
      /** The transaction of `ride` was not committed: what is in memory is read again. */
      undo: () => tallies.clear(),
    },
  }
}

/** The statements on grants, which those on top-ups equal. */
function createRows<T extends typeof grants | typeof grantTopUps>(db: Db, table: T) {
  const name = getTableName(table)
  const decode = decoderOf(table)
  const isOf = 'network = $network AND address = $address'
  const one = statement(db, `SELECT * FROM ${name} WHERE ${isOf}`)
  const insert = insertInto(db, table)
  const setFee = statement(db, `UPDATE ${name} SET fee_wei = $fee WHERE ${isOf}`)
  return {
    find(network: Network.Id, address: Hex): T['$inferSelect'] | undefined {
      const row = one().get({ network, address })
      return row ? decode(row) : undefined
    },
    /** Refused when the address has a row. Throws for a top-up without a grant. */
    insert(row: T['$inferSelect']): void {
      try {
        insert(row)
      } catch (error) {
        throw isDuplicate(error) ? new RefusedError('grant-exists') : error
      }
    },
    setFee: (network: Network.Id, address: Hex, feeWei: bigint) =>
      write(db, () => void setFee().run({ network, address, fee: String(feeWei) })),
  }
}
