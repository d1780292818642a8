import type { Artifact } from '../../src/demo/contracts/artifacts'
import generated from './contracts/artifacts.generated.json'

/** Wallets with code, as payers: an honest one, and one of an attacker. */
export const { SmartWallet, GreedyWallet } = generated as unknown as Record<
  keyof typeof generated,
  Artifact
>
