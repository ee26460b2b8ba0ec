// What of JSON Schema a form can show.

const DEEPEST = 6;

/** Follow `$ref` within the schema itself; return null where it leads nowhere. */
export function resolve(schema, root, followed = 0) {
  if (schema === null || typeof schema !== "object" || followed > 20) return null;
  if (typeof schema.$ref !== "string") return schema;
  if (!schema.$ref.startsWith("#")) return null;
  let found = root;
  for (const part of schema.$ref.slice(1).split("/").slice(1)) {
    const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    if (found === null || typeof found !== "object" || !Object.hasOwn(found, name)) return null;
    found = found[name];
  }
  const target = resolve(found, root, followed + 1);
  if (target === null) return null;
  const { $ref: _, ...beside } = schema;
  return { ...target, ...beside };
}

/** Return the choices of a schema, as `{value, title}`; null if it is no list of choices. */
export function choices(schema) {
  if (Array.isArray(schema.enum)) {
    const names = Array.isArray(schema.enumNames) ? schema.enumNames : [];
    return schema.enum.map((value, at) => ({ value, title: names[at] ?? shown(value) }));
  }
  const branches = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(branches) && branches.length && branches.every((each) => each && Object.hasOwn(each, "const"))) {
    return branches.map((each) => ({ value: each.const, title: each.title ?? shown(each.const) }));
  }
  return null;
}

function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Return what a schema is, for a form: its kind, the schema without null, and whether it takes null. */
export function kindOf(given, root, depth = 0) {
  let schema = resolve(given, root);
  if (schema === null || schema === true || depth > DEEPEST) return { kind: "json", schema: schema ?? {}, nullable: false };
  let nullable = false;
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((type) => type !== "null");
    nullable = types.length < schema.type.length;
    schema = types.length === 1 ? { ...schema, type: types[0] } : { ...schema, type: undefined, anyOf: types.map((type) => ({ type })) };
  }
  if (Object.hasOwn(schema, "const")) return { kind: "const", schema, nullable };
  const listed = choices(schema);
  if (listed !== null) return { kind: "choice", schema, choices: listed, nullable };
  const branches = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(branches)) {
    const others = branches.filter((branch) => resolve(branch, root)?.type !== "null");
    nullable ||= others.length < branches.length;
    if (others.length === 1) {
      const { anyOf: _, oneOf: __, ...beside } = schema;
      const inner = kindOf({ ...resolve(others[0], root), ...beside }, root, depth + 1);
      return { ...inner, nullable: true };
    }
    return { kind: "union", schema, branches: others, nullable };
  }
  if (Array.isArray(schema.allOf) && schema.allOf.length === 1) {
    const { allOf, ...beside } = schema;
    return kindOf({ ...resolve(allOf[0], root), ...beside }, root, depth + 1);
  }
  if (schema.type === "array" && schema.items && !Array.isArray(schema.items) && !schema.prefixItems) {
    const item = resolve(schema.items, root);
    const several = item === null ? null : choices(item);
    return several !== null ? { kind: "choices", schema, choices: several, nullable } : { kind: "list", schema, nullable };
  }
  if (schema.type === "object" && schema.properties && Object.keys(schema.properties).length) return { kind: "object", schema, nullable };
  if (["string", "number", "integer", "boolean"].includes(schema.type)) return { kind: schema.type, schema, nullable };
  return { kind: "json", schema, nullable };
}

/** Return a label for one branch of a union. */
export function branchTitle(branch, root, at) {
  const schema = resolve(branch, root) ?? {};
  const kind = schema.properties?.kind ?? schema.properties?.type;
  const named = typeof branch?.$ref === "string" ? branch.$ref.split("/").pop() : null;
  return schema.title ?? named ?? (kind && Object.hasOwn(kind, "const") ? String(kind.const) : null) ?? schema.type ?? `Form ${at + 1}`;
}
