import * as Crypto from '../protocol/Crypto'
import { createSettlement, type Settlement } from '../settlement/settlement'
import { createSponsor, type Sponsor } from '../sponsor/sponsor'
import type { Base } from './base'
import { createPauses, type Pauses } from './pauses'

/** The parts that move money. */
export type Money = {
  settlement: Settlement
  /** Addresses that send settlements. */
  relayers: readonly `0x${string}`[]
  sponsoring: Sponsor
  /** What an operator has paused. */
  pauses: Pauses
}

/**
 * Starts the settlement and the sponsoring. After `recover` the settlement continues what is
 * unfinished.
 */
export async function startMoney(base: Base): Promise<Money> {
  const { options, current, ledger, registry, now, log } = base
  const { config, secrets } = options
  const fault = (error: unknown) => log('settlement-fault', { error })
  const { admin, onChange } = ledger
  const pauses = await createPauses({ ledger: admin, onChange, now, fault })
  for (const { kind, name } of pauses.all()) log('sales-paused', { kind, name })
  const settlement = await createSettlement({
    ledger,
    meter: registry,
    payerFailuresMax: options.payerFailuresMax,
    blockTimeMs: options.blockTimeMs,
    rpcTimeoutMs: options.rpcTimeoutMs,
    networks: config.networks,
    relayerKeys: secrets.relayerKeys,
    deskKey: config.stock && secrets.deskKey,
    deskNetwork: config.stock?.network,
    monotonic: base.monotonic,
    clockSkewMaxMs: options.clockSkewMaxMs,
    payoutExclusive: () => current.config.service.payoutExclusive,
    isOwnPayee: (payee) =>
      payee === current.config.service.payout ||
      current.config.merchants.some(({ payout }) => payout === payee),
    confirmTwiceAbove: () => current.config.service.confirmTwiceAboveAtomic,
    isPaused: (network) => pauses.has('network', network),
    creditOf(slug) {
      // A merchant that a reload has removed sells nothing new.
      const merchant = current.config.merchants.find((each) => each.slug === slug)
      return (
        merchant && {
          payerAtomic: merchant.payerCreditAtomic,
          dayAtomic: merchant.lossesPerDayAtomic,
          holdsNew: merchant.newStreams === 'held',
        }
      )
    },
    unsettledMax: () => current.config.service.unsettledMaxAtomic,
    now,
    log,
  })
  base.onFailure(() => settlement.stop(0))
  const relayers = secrets.relayerKeys.map(Crypto.addressOf)
  const sponsoring = createSponsor({
    grants: ledger.grants,
    settlement,
    networks: config.networks,
    accounts: [...relayers, settlement.desk],
    meter: registry,
    now,
    log,
    waitMs: () => current.config.service.settleWaitSeconds * 1000,
  })
  return { settlement, relayers, sponsoring, pauses }
}
