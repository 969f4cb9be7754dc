std = "lua54"
max_line_length = 100
files["spec"] = { std = "+busted" }
files["rockspec"] = { std = "rockspec" }
files["types"] = { unused_args = false, ignore = { "241" } } -- nothing in there is called
