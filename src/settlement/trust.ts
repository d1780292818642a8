/**
 * Whose signature may be left to the simulation, which is needed anyway and fails without it:
 * recovering the signer first costs a quarter of a payment. Whoever shows what nobody signed must
 * not make us ask a node for each of it, so that ends with the first such signature.
 */
export type Trust = {
  /** Whether signers need not be recovered before a node is asked: `payer` alone, or one of several. */
  isGiven(payer: string, isAlone: boolean): boolean
  /** Whether nobody is trusted now. */
  isLost(): boolean
  /** A payment that the payer signed has left. */
  earn(payer: string): void
  /** A payment of the payer has left that its own key did not sign: by now it has code that accepts. */
  withdraw(payer: string): void
  /** A signature was of nobody who may pay: nobody is trusted for a while. */
  lose(): void
}

const lostMs = 600_000
const payersMax = 10_000

/** In memory: a restart trusts nobody. Payers are `payerKey`s; `now` is unix ms. */
export function createTrust(now: () => number): Trust {
  const payers = new Set<string>()
  let lostAt: number | undefined
  const isLost = () => lostAt !== undefined && Math.abs(now() - lostAt) < lostMs
  return {
    isLost,
    // Junk among several adds no call to a node; alone it would.
    isGiven: (payer, isAlone) => !isLost() && (!isAlone || payers.has(payer)),
    earn(payer) {
      if (payers.size >= payersMax) payers.clear()
      payers.add(payer)
    },
    withdraw: (payer) => void payers.delete(payer),
    lose() {
      lostAt = now()
    },
  }
}
