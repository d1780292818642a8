/**
 * Every test file that opens a ledger, and the ledgers on which it runs. test/money-files.test.ts says
 * when one is missing. Names are without `.test.ts`.
 */

/** Run on SQLite, and by `bun run test:postgres` over PostgreSQL. */
export const onBoth: readonly string[] = []

/** The same, but PostgreSQL takes them only with `--all`: others test the same statements. */
export const onBothByAll: readonly string[] = []

/** Run on one ledger, with the reason. */
export const onOne: readonly { why: string; files: readonly string[] }[] = []
