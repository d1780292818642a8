/**
 * `drizzle-kit generate --config db/postgres/drizzle.config.ts --name <meaning>` writes the next
 * migration from the generated tables; migrations.ts lists it afterwards. Works offline. Remove
 * `"public".` from it: the tables are where the search path of a connection says. The CHECKs of
 * payments, transactions, gas_spent and lanes are in the functions of 0007_quick_rules: replace those by hand.
 */
const config = {
  dialect: 'postgresql',
  schema: './db/postgres/schema/*.ts',
  out: './db/postgres/migrations',
}

// biome-ignore lint/style/noDefaultExport: drizzle-kit reads nothing else
export default config
